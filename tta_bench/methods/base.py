"""The contract between a test-time adaptation method and everything around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, ClassVar, final

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tta_bench.functional.optimizers import fused
from tta_bench.functional.parameters import batch_norms
from tta_bench.functional.randomness import spawn
from tta_bench.methods.state import MethodState
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parallel import average_gradients
from tta_bench.models.precision import float32_by_default, half_in, store_matrices
from tta_bench.models.preprocess import PreparedBatches
from tta_bench.types import OutputKind, PredictionTiming, SourceNeed, StepOutput, StreamBatch

LEAST_SCALE = 2.0**-24
"""A loss whose gradients overflow float16 even so is itself infinite; the scores will say it."""


class TTAMethod(L.LightningModule, ABC):
    """Adapts a source model online, batch by batch, from unlabeled images only.

    A subclass writes ``forward_and_adapt`` and, where it needs them, ``configure_adaptation``,
    ``configure_optimizers``, ``measure_source`` and ``diagnostics``. It reaches the network only through
    ``self.backbone`` and steps only through ``self.update`` or ``self.backward``; that is what makes counting,
    several devices and resuming possible without a line in a method. It never sees labels, domains or the future.

    What the stream changes is a trainable parameter, a buffer (``add_state``), a teacher (``add_copy``), the
    optimizer, or ``self.rng``; anything else would survive ``reset`` and be lost by a checkpoint.

    Args:
        backbone: The source model.
        seed: Seed of ``rng`` (draws during the stream) and ``setup_rng`` (draws while setting up).
    """

    prediction_timing: ClassVar[PredictionTiming]
    output_kind: ClassVar[OutputKind] = OutputKind.LOGITS
    source_need: ClassVar[SourceNeed] = SourceNeed.NOTHING
    source_settings: ClassVar[tuple[str, ...]] = ()  # hyper-parameters that measure_source depends on
    segments: ClassVar[bool] = False  # whether it works on a network that scores pixels, (B, K, H, W)
    paper: ClassVar[str] = ""
    provenance: ClassVar[str] = ""  # of the default hyper-parameters, e.g. "released code (mr-eggplant/SAR)"

    def __init__(self, backbone: Backbone, *, seed: int = 0) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.backbone = backbone
        self.optimizer: Optimizer | None = None
        self.source_ready = False
        self.rng = torch.Generator().manual_seed(seed)
        self.setup_rng = torch.Generator().manual_seed(seed)
        self._seed = seed
        self._state = MethodState(self)
        self._configured = False
        self._source_size = sum(p.numel() for p in backbone.parameters())
        self._resumed: dict[str, Any] | None = None
        self._scaler: torch.amp.GradScaler | None = None

    # ---- what a method writes ----------------------------------------------------------------------------

    @abstractmethod
    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Predict a batch and learn from it: images (B, C, H, W) in [0, 1] -> scores (B, K)."""

    def configure_adaptation(self) -> None:
        """Choose what is trainable and declare extra parameters and states. Called once, before the stream."""

    def configure_optimizers(self) -> Optimizer | None:
        """Return a fresh optimizer, or None for a method without gradient steps."""
        return None

    def measure_source(self, loader: Iterable[Any]) -> None:
        """Fill the source states, or train what the method adds. Only if ``source_need`` is not NOTHING.

        Args:
            loader: Batches of images (B, C, H, W) in [0, 1], or pairs of images and labels (B,) if labels are
                needed. It can be iterated over again; each pass has its own order.
        """
        raise TypeError(f"{type(self).__name__} needs nothing of the source domain")

    def least_source_images(self) -> int:
        """How many images of the source domain the method cannot do without; asked before anything runs."""
        return int(self.source_need is not SourceNeed.NOTHING)

    def diagnostics(self) -> dict[str, float]:
        """Numbers to log after each batch; always the same keys, e.g. ``{"coreset_size": 4.0}``."""
        return {}

    def notices(self) -> tuple[str, ...]:
        """Sentences about how the method adapts this network, if that is not as its settings say."""
        return ()

    def passes(self) -> tuple[float, float] | None:
        """Forward and backward passes per sample that the algorithm made for the last batch; None if not declared.

        A claim, checked by ``check_method``; what a run reports is counted at the backbone's door.
        """
        return None

    # ---- what a method calls -----------------------------------------------------------------------------

    def add_state(self, name: str, default: Tensor, *, source: bool = False) -> None:
        """Declare a tensor that follows the device and is saved; ``reset`` restores it unless ``source``."""
        self._state.add(name, default, source=source)

    def add_copy(self, name: str, *, moves: bool = True) -> None:
        """Add a copy of the backbone that takes no gradients: a teacher, or (``moves=False``) an anchor.

        Call it when the trainable parameters are chosen: only those are copied, frozen weights are shared.
        """
        self._state.add_copy(name, self.backbone, moves=moves)

    def initial_values(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """The values that parameters of this method had before the stream, on their device."""
        return self._state.initial_of(parameters)

    @torch.no_grad()
    def restore_parameters(self) -> None:
        """Set the trainable parameters back to their values before the stream, as a recovery does."""
        parameters = [p for p in self.parameters() if p.requires_grad]
        for p, value in zip(parameters, self.initial_values(parameters), strict=True):
            p.copy_(value)

    def device_rng(self) -> torch.Generator:
        """A generator on the method's device, for draws of many numbers; seeded by ``rng``."""
        return spawn(self.rng, self.device)

    def update(self, loss: Tensor) -> None:
        """One optimizer step on ``loss``."""
        assert self.optimizer is not None, f"{type(self).__name__}.configure_optimizers() returned no optimizer"
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(loss)
        self.optimizer.step()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of ``loss``, for methods that step by hand (e.g. twice, as SAM does)."""
        learned = [p for p in self.parameters() if p.requires_grad]
        if self._scaler is not None:
            self._scaled_backward(loss, self._scaler, learned)
            return
        loss.backward()
        average_gradients(learned)

    def _scaled_backward(self, loss: Tensor, scaler: torch.amp.GradScaler, learned: list[nn.Parameter]) -> None:
        """Gradients of float16 passes: scaled against underflow, and computed again, scaled less, if they overflow."""
        assert self.optimizer is not None, f"{type(self).__name__}.configure_optimizers() returned no optimizer"
        while True:
            scaler.scale(loss).backward(retain_graph=True)
            average_gradients(learned)  # before the check, so that all devices see the overflow of one
            scale = scaler.get_scale()
            scaler.unscale_(self.optimizer)
            scaler.update()
            if scaler.get_scale() >= scale or scale < LEAST_SCALE:
                return
            for p in learned:
                p.grad = None

    def restart_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        self.optimizer = fused(self.configure_optimizers())

    # ---- what everybody else calls -----------------------------------------------------------------------

    @final
    def configure_model(self) -> None:
        """Set up once: freeze, declare, remember the initial values. Lightning calls it before a stream."""
        if self._configured:
            return
        self._configured = True
        with float32_by_default():
            self.configure_adaptation()
        self.eval()
        self._state.remember()
        self.restart_optimizer()

    @final
    def forward(self, images: Tensor) -> Tensor:
        """Adapt to a batch and predict it: ``method(images)`` does what a stream does with each of its batches.

        Args:
            images: (B, C, H, W) uint8, or floats in [0, 1], of any size that ``backbone.prepare`` takes.

        Returns:
            Scores (B, K), of pixels (B, K, H, W), without a graph.

        Raises:
            RuntimeError: If the method needs the source and has not seen it, or inside ``torch.inference_mode()``.
            FloatingPointError: If a score is not finite; its argmax would be taken for a class.
            ValueError: If the images are not as ``backbone.prepare`` takes them.
        """
        self.configure_model()
        return self._checked(images)

    def _checked(self, images: Tensor, place: str = "") -> Tensor:
        _require_gradients()
        if self.source_need is not SourceNeed.NOTHING and not self.source_ready:
            raise RuntimeError(f"{type(self).__name__} needs the source: call fit_source(loader) before the stream")
        self.backbone.compilation.begin(len(images))
        with torch.enable_grad(), self.backbone.precision.inside_the_network(self.device.type):
            scores = self.forward_and_adapt(self.backbone.prepare(images.to(self.device))).detach()
        if not torch.isfinite(scores).all():
            raise FloatingPointError(f"{type(self).__name__} returned a score that is not finite{place}")
        return scores

    @final
    def fit_source(self, loader: Iterable[Any]) -> None:
        """Measure the source domain, before the stream.

        Args:
            loader: As for ``measure_source``, but images may be uint8 and of any size that ``backbone.prepare`` takes.
                ``source_dataloader`` of a DataModule gives one.
        """
        self.configure_model()
        with torch.enable_grad(), self.backbone.on_source():  # Lightning has gradients off when a stream starts
            self.measure_source(PreparedBatches(loader, self.backbone.prepare))
        self._state.remember_trained()
        self.restart_optimizer()
        self.source_ready = True

    @final
    def reset(self) -> None:
        """Forget the stream: afterwards the method behaves as a newly built one. Source states are kept."""
        assert self._configured, "call configure_model() first"
        self._state.assign(self._state.initial)
        self.rng.manual_seed(self._seed)
        self.restart_optimizer()

    def to(self, *args: Any, **kwargs: Any) -> TTAMethod:
        """As for every module; in half precision, only the frozen matrices and kernels of the networks are stored."""
        if (half := half_in(*args, **kwargs)) is None:
            return super().to(*args, **kwargs)
        self.configure_model()
        for name in ("backbone", *self._state.copies):
            store_matrices(self.get_submodule(name), half, self._state.changeable(), name)
        self.backbone.precision.stored = self.backbone.precision.computed = half
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TTAMethod:
        """Move the initial values along with everything else."""
        super()._apply(fn, recurse)
        self._state.move(fn)
        return self

    @final
    def adaptation_state(self) -> dict[str, Any]:
        """Everything that ``load_adaptation_state`` needs to resume: only tensors, numbers and strings."""
        return {
            **self._state.snapshot(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "scaler": self._scaler.state_dict() if self._scaler else None,
            "rng": self.rng.get_state(),
            "source_ready": self.source_ready,
            "compiled_size": self.backbone.compilation.batch_size,
        }

    @final
    def load_adaptation_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, which stays as it is; states may have grown since."""
        self.configure_model()
        self._state.restore(state["tensors"], state["initial"])
        self.rng.set_state(state["rng"].cpu())
        self.source_ready = state["source_ready"]
        self.backbone.compilation.batch_size = state["compiled_size"]
        self.restart_optimizer()
        if self.optimizer is not None:
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # else its tensors would be updated in place

    @final
    def start_from(self, state: dict[str, Any]) -> None:
        """Let the next stream begin in a saved state; the optimizer must wait until the module is on its device."""
        self.load_adaptation_state(state)
        self._resumed = {key: state[key] for key in ("optimizer", "scaler")}

    @final
    def source_state(self) -> dict[str, Tensor]:
        """What ``fit_source`` measured and trained, to be cached."""
        return self._state.of_source()

    @final
    def load_source_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``source_state`` gave."""
        self._state.take_source(state)
        self.source_ready = True

    def trainable_parameters(self) -> int:
        """Number of scalars that the optimizer holds."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def has_copies(self) -> bool:
        """Whether it holds copies of the network, such as a teacher."""
        return bool(self._state.copies)

    def extra_parameters(self) -> int:
        """Number of scalars that the method adds to the source model; copies of the network do not count."""
        held = sum(p.numel() for name, p in self.named_parameters() if name.partition(".")[0] not in self._state.copies)
        return held - self._source_size

    # ---- Lightning hooks, in the order in which they are called -------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Replace Lightning's state dict by ours: the frozen source weights are not part of a run's state."""
        checkpoint["state_dict"] = {}
        checkpoint["adaptation"] = self.adaptation_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where the checkpoint was saved."""
        self.start_from(checkpoint["adaptation"])
        checkpoint["state_dict"] = self.state_dict()  # what Lightning loads next: itself

    @final
    def on_test_start(self) -> None:
        """Start the stream: check the trainer, fit the source if nobody did, and forget earlier streams."""
        _require_gradients()
        if self.trainer.world_size > 1 and any(layer.running_mean is None for layer in batch_norms(self)):
            raise RuntimeError(
                "a batch norm layer that uses the statistics of the batch sees only a share of it on several devices: "
                "build the Trainer with devices=1"
            )
        if self.source_need is not SourceNeed.NOTHING and not self.source_ready:
            self.fit_source(self.trainer.datamodule.source_dataloader(self.source_need))
        scales = getattr(self.trainer.precision_plugin, "scaler", None) is not None  # 16-mixed
        self._scaler = torch.amp.GradScaler(self.device.type) if scales else None
        if self._resumed is None:
            self.backbone.compilation.batch_size = None
            self.reset()
            return
        self.restart_optimizer()
        if self.optimizer is not None:
            self.optimizer.load_state_dict(self._resumed["optimizer"] or {})
        if self._scaler is not None:
            self._scaler.load_state_dict(self._resumed["scaler"])
        self._resumed = None

    @final
    def test_step(self, batch: StreamBatch, batch_idx: int) -> StepOutput:
        """Adapt to one batch, as ``forward`` does. Labels and domains stop here."""
        return StepOutput(self._checked(batch.images, f" at step {batch.step}"))


def _require_gradients() -> None:
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "adaptation needs gradients: build the Trainer with inference_mode=False, and call a method outside of "
            "torch.inference_mode()"
        )
