"""The contract of all methods, as ready-made checks for new methods.

``check_method(MyMethod)`` runs the method on a tiny vision transformer and toy domains with the real Lightning Trainer.
It returns a short summary of the checks, or raises ``AssertionError`` with a sentence that says which part of the
contract is violated. All checks are public, to be run alone or parametrised over ``CHECKS`` with pytest.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy

from tta_bench.data.datamodule import StreamDataModule
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.segformer import SegFormerBackbone
from tta_bench.testing.toy import NUM_CLASSES, batches, toy_backbone, toy_data
from tta_bench.types import PredictionTiming, SourceNeed, StepOutput, StreamBatch

Build = Callable[[], TTAMethod]


def ready(build: Build) -> TTAMethod:
    """Build a method and fit it to its source, before its first batch."""
    method = build()
    method.configure_model()
    if method.source_need is not SourceNeed.NOTHING:
        method.fit_source(toy_data().source_dataloader(method.source_need, batch_size=16))
    return method


def run_stream(method: TTAMethod, data: StreamDataModule, *callbacks: L.Callback) -> Tensor:
    """Run the stream with a Lightning Trainer; return scores (N, K) in order of arrival."""

    class Keep(L.Callback):
        def __init__(self) -> None:
            self.scores: list[Tensor] = []

        def on_test_batch_end(
            self, trainer: L.Trainer, module: L.LightningModule, outputs: StepOutput, *_: Any
        ) -> None:
            self.scores.append(outputs.scores.clone())

    keep = Keep()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, inference_mode=False, logger=False, callbacks=[keep, *callbacks],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.test(method, datamodule=data, verbose=False)
    return torch.cat(keep.scores)


# ---- the checks ----------------------------------------------------------------------------------------------


def check_same_result_whatever_ran_before(build: Build) -> None:
    """Results do not depend on global random numbers or on earlier streams."""
    torch.manual_seed(1)
    method = ready(build)
    first = run_stream(method, toy_data())
    torch.manual_seed(2)
    again = run_stream(method, toy_data())
    _equal(first, again, "the same stream gave different scores the second time: state was not reset, or is not seeded")


def check_reset_is_bit_exact(build: Build) -> None:
    """``reset()`` in mid-stream restores the initial state exactly: same tensors, same scores."""
    method, stream = ready(build), batches(6)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    first = [method.forward_and_adapt(images).detach().clone() for images in stream]
    method.reset()
    after = method.state_dict()
    assert before.keys() == after.keys(), f"reset() changed the set of tensors: {before.keys() ^ after.keys()}"
    for name, value in before.items():
        _equal(value, after[name], f"reset() did not restore {name}")
    again = [method.forward_and_adapt(images).detach() for images in stream]
    _equal(torch.cat(first), torch.cat(again), "after reset() the same batches gave different scores")


def check_labels_never_reach_the_method(build: Build) -> None:
    """Labels and domain ids do not influence the scores."""

    class Scrambled(StreamDataModule):
        def on_after_batch_transfer(self, batch: StreamBatch, dataloader_idx: int) -> StreamBatch:
            batch = super().on_after_batch_transfer(batch, dataloader_idx)
            return batch._replace(labels=(batch.labels + 1) % NUM_CLASSES, domain_ids=batch.domain_ids * 0)

    honest = toy_data()
    scrambled = Scrambled(honest.domains, honest.schedule)
    first, second = run_stream(ready(build), honest), run_stream(ready(build), scrambled)
    _equal(first, second, "different labels gave different scores: labels or domains reach the method")


def check_no_graph_is_kept(build: Build) -> None:
    """No state holds an autograd graph, and only the scores have one."""
    method = ready(build)
    for images in batches(4):
        method.forward_and_adapt(images)
        for name, value in method.named_buffers():
            assert value.grad_fn is None, f"the state {name} keeps an autograd graph: detach what is stored"
            assert not value.requires_grad, f"the state {name} requires gradients: detach what is stored"


def check_memory_is_flat(build: Build, last: int = 150) -> None:
    """From batch 50 on, only declared states grow."""
    method, stream = ready(build), batches(9, batch_size=4)

    def undeclared_bytes() -> int:
        gc.collect()
        declared = {value.data_ptr() for _, value in method.named_buffers()}
        found = (o for o in gc.get_objects() if issubclass(type(o), Tensor) and not is_lazy(o))
        tensors = [t for t in found if not isinstance(t, FakeTensor)]  # of torch.compile, without memory
        return sum(t.nbytes for t in tensors if t.data_ptr() not in declared)

    sizes = []
    for t in range(last):
        method.forward_and_adapt(stream[t % len(stream)])
        if t in (49, last - 1):
            sizes.append(undeclared_bytes())
    grown = sizes[1] - sizes[0]
    message = f"{grown} bytes of tensors were added in {last - 50} batches: declare states, detach, drop lists"
    assert grown < 10_000, message


def check_odd_batches_are_survived(build: Build) -> None:
    """A batch of one image and a short last batch result in finite scores and states."""
    method = ready(build)
    for size in (8, 1, 8, 3, 1, 2):
        scores = method.forward_and_adapt(batches(1, batch_size=size)[0])
        assert scores.shape[:2] == (size, NUM_CLASSES), f"{size} images gave scores of shape {tuple(scores.shape)}"
        assert torch.isfinite(scores).all(), f"a batch of {size} gave scores that are not finite"
        for name, value in method.state_dict().items():
            assert torch.isfinite(value).all(), f"after a batch of {size} the state {name} is not finite"


def check_prediction_timing_is_true(build: Build) -> None:
    """The prediction uses exactly the updates that ``prediction_timing`` declares."""
    images = batches(1)[0]
    scores, updates = _scores_with_updates(build, images, allowed=None)
    without_any, _ = _scores_with_updates(build, images, allowed=0)
    without_last, _ = _scores_with_updates(build, images, allowed=max(0, updates - 1))
    sees_any, sees_last = not torch.equal(scores, without_any), not torch.equal(scores, without_last)
    declared = build().prediction_timing
    expected = {
        PredictionTiming.BEFORE_UPDATE: (False, False),
        PredictionTiming.LAST_FORWARD: (updates > 1, False),
        PredictionTiming.AFTER_UPDATE: (True, True),
    }[declared]
    assert (sees_any, sees_last) == expected, (
        f"prediction_timing says {declared.value}, but of {updates} updates the prediction "
        f"{'sees' if sees_last else 'does not see'} the last and {'sees' if sees_any else 'does not see'} any"
    )


def _scores_with_updates(build: Build, images: Tensor, allowed: int | None) -> tuple[Tensor, int]:
    """Scores of the first batch if only the first ``allowed`` optimizer steps take effect, and the number of steps."""
    method, calls = ready(build), 0
    make = method.configure_optimizers

    def limited() -> torch.optim.Optimizer | None:
        optimizer = make()
        if optimizer is None:
            return None
        step = optimizer.step

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return step(*args, **kwargs) if allowed is None or calls <= allowed else None

        optimizer.step = counted  # type: ignore[method-assign]  # only this optimizer is limited
        return optimizer

    method.configure_optimizers = limited  # type: ignore[method-assign]  # only this method's optimizers
    method.reset()
    return method.forward_and_adapt(images).detach(), calls


def check_passes_are_as_declared(build: Build) -> None:
    """``passes()`` agrees with the meter and with independent hooks inside the network."""
    method = ready(build)
    counted = {"forward": 0, "backward": 0}

    def watch(_: Any, __: Any, output: Tensor) -> None:
        counted["forward"] += len(output)
        if output.requires_grad:
            output.register_hook(lambda g: counted.__setitem__("backward", counted["backward"] + _reached(g)))

    for module in method.modules():  # teachers and anchors too
        if isinstance(module, VisionTransformer):
            module.norm.register_forward_hook(watch)
        if isinstance(module, ResNet):
            module.global_pool.register_forward_hook(watch)
        if isinstance(module, SegFormerBackbone):
            module.stages[-1].register_forward_hook(watch)
    meter = method.backbone.meter
    for images in batches(6):
        counted.update(forward=0, backward=0)
        before = (meter.forward_samples, meter.backward_samples)
        method.forward_and_adapt(images)
        metered = (meter.forward_samples - before[0], meter.backward_samples - before[1])
        hooked = (counted["forward"], counted["backward"])
        assert metered == hooked, f"the meter counts {metered} images forward and backward, the network saw {hooked}"
        declared = method.passes()
        assert declared is not None, "override `passes()`, the forward and backward passes per sample of the last batch"
        seen = (hooked[0] / len(images), hooked[1] / len(images))
        assert np.allclose(declared, seen), f"`passes()` declares {tuple(declared)} per sample, the network saw {seen}"


def _reached(gradient: Tensor) -> int:
    return int((gradient.flatten(1) != 0).any(dim=1).sum())


def check_state_survives_save_and_load(build: Build) -> None:
    """Saved and loaded with ``weights_only=True`` into a new object, the method continues bit for bit."""
    method, stream = ready(build), batches(8)
    for images in stream[:4]:
        method.forward_and_adapt(images)
    file = io.BytesIO()
    torch.save(method.adaptation_state(), file)
    goes_on = [method.forward_and_adapt(images).detach() for images in stream[4:]]
    file.seek(0)
    other = build()
    other.load_adaptation_state(torch.load(file, weights_only=True))
    resumed = [other.forward_and_adapt(images).detach() for images in stream[4:]]
    _equal(torch.cat(goes_on), torch.cat(resumed), "the loaded method gave different scores: a state is not declared")
    other.reset()
    fresh = ready(build)
    _equal(
        torch.cat([other.forward_and_adapt(x).detach() for x in stream[:2]]),
        torch.cat([fresh.forward_and_adapt(x).detach() for x in stream[:2]]),
        "reset() after loading is not a fresh start",
    )


def check_resume_equals_uninterrupted(build: Build) -> None:
    """After two interruptions in mid-stream, resumed methods have the scores and states of an uninterrupted run."""

    class Save(L.Callback):
        def __init__(self, step: int) -> None:
            self.step, self.file, self.seen = step, io.BytesIO(), 0

        def on_test_batch_end(
            self, trainer: L.Trainer, module: TTAMethod, outputs: Any, batch: StreamBatch, *_: Any
        ) -> None:
            self.seen += len(batch.labels) if batch.step <= self.step else 0
            if batch.step == self.step:
                torch.save(module.adaptation_state(), self.file)

        def state(self) -> Any:
            self.file.seek(0)
            return torch.load(self.file, weights_only=True)

    last = len(toy_data().schedule) - 1
    method, save = ready(build), Save(step=1)
    scores = run_stream(method, toy_data(), save)
    for following in (last - 1, last):
        other, data, state = build(), toy_data(), save.state()
        data.start, seen = save.step + 1, save.seen
        other.start_from(state)
        save = Save(step=following)
        save.seen = seen
        rest = run_stream(other, data, save)
        _equal(scores[seen:], rest, f"resumed at batch {data.start} it gave different scores: a state is not declared")
        _same_state(method.adaptation_state(), other.adaptation_state(), "the resumed method")


def _same_state(a: Any, b: Any, place: str) -> None:
    if isinstance(a, Tensor):
        _equal(a, b, f"{place} differs from that of an uninterrupted run")
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), f"{place} has different entries than in an uninterrupted run"
        for key in a:
            _same_state(a[key], b[key], f"{place}: {key}")
    else:
        assert a == b, f"{place} differs from that of an uninterrupted run"


def check_only_what_is_stepped_requires_gradients(build: Build) -> None:
    """The optimizer has exactly the parameters that require gradients: no hidden cost, no unused parameters."""
    method = ready(build)
    held = {id(p) for group in (method.optimizer.param_groups if method.optimizer else []) for p in group["params"]}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad != (id(parameter) in held):
            state = "requires gradients but is in no optimizer" if parameter.requires_grad else "is stepped but frozen"
            raise AssertionError(f"the parameter {name} {state}")


def check_modules_stay_in_eval_mode(build: Build) -> None:
    """Dropout and stochastic depth stay off while the stream runs."""
    method = ready(build)
    for images in batches(2):
        method.forward_and_adapt(images)
    training = [name for name, module in method.named_modules() if name and module.training]
    assert not training, f"these modules are in training mode: {', '.join(training[:5])}"


CHECKS: tuple[Callable[[Build], None], ...] = (
    check_same_result_whatever_ran_before,
    check_reset_is_bit_exact,
    check_labels_never_reach_the_method,
    check_no_graph_is_kept,
    check_memory_is_flat,
    check_odd_batches_are_survived,
    check_prediction_timing_is_true,
    check_passes_are_as_declared,
    check_state_survives_save_and_load,
    check_resume_equals_uninterrupted,
    check_only_what_is_stepped_requires_gradients,
    check_modules_stay_in_eval_mode,
)


def check_method(cls: type[TTAMethod], *, backbone: Callable[[], Backbone] = toy_backbone, **settings: Any) -> str:
    """Check that a method fulfils the contract.

    Args:
        cls: The method.
        backbone: Creates the source model, with ``NUM_CLASSES`` classes and for 16x16 images; ``toy_segformer`` is
            one for segmentation.
        settings: Keyword arguments of the method, e.g. fewer steps or source images to save time.

    Returns:
        Summary: one line about the method, and one line per check.

    Raises:
        AssertionError: If a check fails; the message says which and what to do.

    Example:
        >>> from tta_bench.methods import Source
        >>> account = check_method(Source)
        >>> print(account.splitlines()[0])
        Source fulfils the contract: 12 checks on a toy ViTBackbone, predicting before update, source data: nothing
    """

    def build() -> TTAMethod:
        return cls(backbone(), **settings)

    for check in CHECKS:
        check(build)
    timing, need = cls.prediction_timing.value.replace("_", " "), cls.source_need.value
    kept = "\n".join(f"  {(check.__doc__ or check.__name__).splitlines()[0]}" for check in CHECKS)
    return (
        f"{cls.__name__} fulfils the contract: {len(CHECKS)} checks on a toy {type(build().backbone).__name__}, "
        f"predicting {timing}, source data: {need}\n{kept}"
    )


def _equal(a: Tensor, b: Tensor, message: str) -> None:
    assert torch.equal(a, b), message
