"""Every method on a compiled network: the same numbers, and nothing is compiled again during a stream."""

from __future__ import annotations

import copy

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch._dynamo.utils import counters

from tests.helpers.methods import BACKBONES, FAST, Honest
from tests.helpers.ranks import on_ranks
from tta_bench import testing
from tta_bench.functional import softmax_entropy
from tta_bench.methods import METHODS
from tta_bench.models.compilation import Compilation
from tta_bench.testing.toy import toy_data

# Not ours: dynamo looks at every gradient. Torch hides the warning, pytest shows it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
COMMON = ("tent", "dpcore", "cotta", "bn_adapt")
NAMES = [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
NEVER = {"memo"}  # adapts to views of one image, which are not a batch of the stream


class Watch(L.Callback):
    """Keeps the scores and the number of graphs after each batch, and, after batch ``step``, the state."""

    def __init__(self, step=None):
        self.scores, self.graphs, self.step, self.state = [], [], step, None

    def on_test_batch_end(self, trainer, module, outputs, batch, *_):
        self.scores.append(outputs.scores)
        self.graphs.append(counters["stats"]["unique_graphs"])
        if batch.step == self.step:
            self.state = copy.deepcopy(module.adaptation_state())


def run(method, data=None, watch=None, **trainer):
    counters.clear()
    watch = watch or Watch()
    L.Trainer(
        accelerator="cpu", devices=1, inference_mode=False, logger=False, callbacks=[watch],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **{"precision": None if trainer else "64-true"} | trainer,
    ).test(method, datamodule=data or toy_data(), verbose=False)  # fmt: skip
    return watch


def build(name, backend="eager", **settings):
    """A method on a compiled network; without a backend, on one that is not compiled."""
    backbone = BACKBONES.get(name, testing.toy_backbone)()
    if backend:
        backbone.compilation = Compilation("default", backend)
    return METHODS[name](backbone, **FAST.get(name, {}) | settings)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_its_numbers_and_compiles_in_its_first_batches_only(name):
    plain, compiled = run(build(name, backend=None)), run(build(name))
    torch.testing.assert_close(compiled.scores, plain.scores, rtol=0, atol=1e-12)
    assert (compiled.graphs[0] == 0) == (name in NEVER)
    assert compiled.graphs[1] == compiled.graphs[-1]
    assert [len(scores) for scores in compiled.scores[-4:]] == [8, 1, 1, 1]  # the last is not compiled either


def test_a_growing_coreset_compiles_nothing():
    method = build("dpcore", rho=0.0)  # every batch is new
    graphs = run(method).graphs
    assert len(method.coreset) == 6
    assert graphs == [4] * 9  # embed, encode without and with a prompt, classify


@pytest.mark.parametrize("step", [2, 6])
def test_a_resumed_stream_goes_on_with_the_same_numbers_and_batch_size(step):
    whole = run(build("tent"), watch=(watch := Watch(step)))
    resumed, data = build("tent").double(), toy_data()
    data.start = step + 1
    resumed.start_from(watch.state)
    rest = run(resumed, data)
    torch.testing.assert_close(rest.scores, whole.scores[step + 1 :], rtol=0, atol=0)
    assert rest.graphs[-1] == (0 if step == 6 else whole.graphs[-1])  # only batches of one image are left after 6


def test_another_stream_compiles_batches_of_its_own_size():
    method = build("tent")
    sizes = [run(method, toy_data(batch_size=size)).graphs[0] for size in (8, 5)]
    assert sizes == [3, 3]


class Overflows(Honest):
    """Its loss overflows float16 at first, so that gradients are computed again from the same graph."""

    def forward_and_adapt(self, images):
        logits = self.backbone(images)
        self.update(1e4 * softmax_entropy(logits).mean())
        return logits


@pytest.mark.slow
def test_gradients_that_overflow_are_computed_again():
    backbone = testing.toy_backbone()
    backbone.compilation = Compilation("default", "inductor")
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    watch = run(method := Overflows(backbone), plugins=[plugin])
    assert watch.graphs[-1] > 0
    assert method.adaptation_state()["scaler"]["scale"] < 65536


def _adapt(name):
    """Scores on batches that two ranks divide evenly and unevenly, and the number of graphs after each."""
    method = build(name, "aot_eager").double()
    method.configure_model()
    if name == "dpcore":
        method.fit_source([testing.batches(1, 32, seed=9)[0].double()])
    scores, graphs = [], []
    for seed, size in enumerate((7, 7, 8, 7)):
        scores.append(method(testing.batches(1, size, seed=seed)[0].double()))
        graphs.append(counters["stats"]["unique_graphs"])
    return torch.cat(scores).tolist(), graphs


def _adapt_both():
    found = {}
    for name in ("tent", "dpcore"):
        counters.clear()
        found[name] = _adapt(name)
    return found


@pytest.mark.slow
def test_two_devices_have_the_scores_of_one():
    several = on_ranks(2, _adapt_both)
    for name, (scores, graphs) in several.items():
        counters.clear()
        torch.testing.assert_close(torch.tensor(scores), torch.tensor(_adapt(name)[0]), rtol=0, atol=1e-10)
        assert 0 < graphs[0] == graphs[-1]
