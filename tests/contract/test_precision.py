"""Every method runs in half precision, which stays inside the network."""

from __future__ import annotations

import copy
import io

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from tests.helpers.methods import BACKBONES, FAST, Honest
from tta_bench import testing
from tta_bench.functional import softmax_entropy
from tta_bench.methods import METHODS
from tta_bench.testing.toy import toy_data

DTYPES = {"bf16-true": torch.bfloat16, "16-true": torch.float16}
RARE = [pytest.param(name, marks=pytest.mark.slow) for name in ("bf16-mixed", "16-true")]


class Watch(L.Callback):
    """Keeps the scores and, after batch ``step``, the state."""

    def __init__(self, step=None):
        self.scores, self.step, self.file = [], step, io.BytesIO()

    def on_test_batch_end(self, trainer, module, outputs, batch, *_):
        self.scores.append(outputs.scores)
        if batch.step == self.step:
            torch.save(module.adaptation_state(), self.file)


def run(method, precision, data=None, watch=None):
    """Run the stream of toy domains; Lightning itself refuses 16-mixed on a CPU, so its plugin is given."""
    scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    given = {"plugins": [scaled]} if precision == "16-mixed" else {"precision": precision}
    watch = watch or Watch()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, inference_mode=False, logger=False, callbacks=[watch],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **given,
    )  # fmt: skip
    trainer.test(method, datamodule=data or toy_data(), verbose=False)
    return torch.cat(watch.scores)


def build(name):
    return METHODS[name](BACKBONES.get(name, testing.toy_backbone)(), **FAST.get(name, {}))


@pytest.fixture(scope="module")
def in_float32():
    known = {}

    def scores(name):
        if name not in known:
            known[name] = run(build(name), "32-true")
        return known[name]

    return scores


@pytest.mark.parametrize("precision", ["bf16-true", "16-mixed", *RARE])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_keeps_its_digits(name, precision, in_float32):
    method = build(name)
    scores = run(method, precision)
    reference = in_float32(name)
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, reference), "nothing was computed in half precision"
    assert (scores.argmax(1) == reference.argmax(1)).float().mean() >= 0.95
    kept = [*method.named_buffers(), *((n, p) for n, p in method.named_parameters() if p.requires_grad)]
    halves = [name for name, value in kept if value.is_floating_point() and value.element_size() < 4]
    assert not halves, f"in half precision: {halves}"
    stored = {p.dtype for p in method.backbone.parameters() if p.ndim > 1 and not p.requires_grad}
    assert DTYPES.get(precision, torch.float32) in stored or not stored


class Measures(Honest):
    """Multiplies matrices of its own, and scales its loss."""

    factor = 1.0

    def forward_and_adapt(self, images):
        logits = self.backbone(images)
        self.product = torch.eye(3) @ torch.full((3, 3), 1.001)
        self.features = self.backbone.features(images)
        self.update(self.factor * softmax_entropy(logits).mean())
        self.gradients = torch.cat([p.grad.flatten() for p in self.adapted])
        return logits

    def configure_optimizers(self):
        return torch.optim.SGD(self.adapted, lr=0.0)  # so that gradients do not depend on earlier ones

    def passes(self):
        return (2, 1)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_what_a_method_computes_itself_is_in_float32(precision):
    method = Measures(testing.toy_backbone())
    run(method, precision)
    assert method.features.dtype == torch.float32
    torch.testing.assert_close(method.product, torch.full((3, 3), 1.001), rtol=1e-7, atol=0)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("factor", [1e-6, 1e4])
def test_gradients_of_float16_neither_vanish_nor_overflow(factor):
    plain, small = Measures(testing.toy_backbone()), Measures(testing.toy_backbone())
    small.factor = factor
    run(plain, "16-mixed")
    run(small, "16-mixed")
    assert plain.gradients.abs().max() > 0
    torch.testing.assert_close(small.gradients / factor, plain.gradients, rtol=0.1, atol=1e-3)


def test_a_resumed_stream_continues_with_the_scale_of_the_loss():
    scaled = Measures(testing.toy_backbone())
    scaled.factor = 1e4  # overflows at first, so that the scale has changed
    watch = Watch(step=1)
    whole = run(scaled, "16-mixed", watch=watch)
    watch.file.seek(0)
    state = torch.load(watch.file, weights_only=True)
    assert state["scaler"]["scale"] < 65536
    resumed, data = Measures(testing.toy_backbone()), toy_data()
    resumed.factor, data.start = 1e4, 2
    resumed.start_from(copy.deepcopy(state))
    rest = run(resumed, "16-mixed", data)
    torch.testing.assert_close(rest, whole[-len(rest) :], rtol=0, atol=0)
    assert resumed.adaptation_state()["scaler"] == scaled.adaptation_state()["scaler"]
