"""The adapted model on disk: the method's state, and the network's weights where these are all that changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from safetensors.torch import save_file
from torch import nn

from tta_bench.files import write_json, writing
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import StreamBatch

STATE, WEIGHTS, CARD = "state.pt", "weights.safetensors", "card.json"


class SaveAdapted(L.Callback):
    """Saves the adapted model after the stream, and every few batches if asked.

    Args:
        folder: The run's folder; models go to ``adapted`` and ``adapted-<batches>`` in it.
        source_model: Returns the source model.
        facts: What the card says of the run.
        every: Batches between two models; None saves the last one only.
    """

    def __init__(
        self, folder: Path, source_model: Callable[[], Backbone], facts: dict[str, Any], every: int | None
    ) -> None:
        self.folder, self._source_model, self.facts, self.every = folder, source_model, facts, every
        self._batches = 0

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: StreamBatch, *_: Any
    ) -> None:
        """Save where it is due."""
        self._batches = batch.step + 1
        if self.every and self._batches % self.every == 0 and trainer.is_global_zero:
            self._save(pl_module, f"adapted-{self._batches}")

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the last model."""
        if trainer.is_global_zero:
            self._save(pl_module, "adapted")

    def _save(self, method: L.LightningModule, name: str) -> None:
        assert isinstance(method, TTAMethod)
        place = self.folder / name
        weights, reason = plain_weights(method, self._source_model())
        with writing(place):
            place.mkdir(exist_ok=True)
            torch.save(method.adaptation_state(), place / STATE)
            if weights is not None:
                save_file(weights, place / WEIGHTS)
        write_json(place / CARD, {**self.facts, "batches": self._batches, "weights": reason or WEIGHTS})


def plain_weights(method: TTAMethod, source: Backbone) -> tuple[dict[str, torch.Tensor] | None, str]:
    """The network's state dict, with the names that the source model's own has; else None and the reason.

    Only if these weights predict what the method predicts: nothing was added, no copy predicts in its place, and the
    layers are those of the source model.
    """
    if method.output_kind != TTAMethod.output_kind:
        return None, "none: the method changes the predictions, not only the weights"
    if method.extra_parameters() or method.has_copies or "coreset_size" in method.diagnostics():
        return None, "none: the method adds parameters or predicts with a copy of the network; load state.pt"
    own, before = _network(method.backbone), _network(source)
    if own is None or before is None or [type(m) for m in own.modules()] != [type(m) for m in before.modules()]:
        return None, "none: the method changes the layers of the network; load state.pt"
    state = {key: value.detach().cpu().clone().contiguous() for key, value in own.state_dict().items()}
    if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in before.state_dict().items()}:
        return None, "none: the method changes the layers of the network; load state.pt"
    return state, ""


def _network(backbone: Backbone) -> nn.Module | None:
    """The library's network in a backbone."""
    inner = [child for name, child in backbone.named_children() if name != "normalize"]
    return inner[0] if len(inner) == 1 else None
