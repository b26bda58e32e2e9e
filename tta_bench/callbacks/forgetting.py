"""Forgetting: what a stream has cost a method on the source domain, measured when the stream has ended."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch

from tta_bench.callbacks.monitor import peak_memory_bytes
from tta_bench.data.datamodule import SourceBatches, StreamDataModule
from tta_bench.datasets.base import DomainDataset, Subset
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import StreamBatch


class Forgetting(L.Callback):
    """Lets the method predict source images from the state that the stream left, and the source model beside it.

    Every batch starts in that state, so that a method which learns the source domain anew within a few batches does
    not hide what it had forgotten; a method that predicts after its update has that one update. Afterwards the method
    is as the stream left it. Images are resized and normalised as the stream's are, whatever a method learned the
    source from.

    The stream never shows these images, but they are no test images: on them a source model has often been trained,
    and a method that needs the source has learned from some. So the difference says something, the errors do not.

    Args:
        images: Number of source images, drawn from those that the data set has: the same for every method and seed.
            0 measures nothing.
        batch_size: Images per batch, as in the stream; the last may be shorter.
        source_model: Makes the source model.

    Attributes:
        facts: For ``result.json``, once the stream has ended: ``forgetting`` (error after the stream minus the source
            model's, in points), both errors in percent, the number of images, and the peak memory until then.
    """

    def __init__(self, images: int, batch_size: int, source_model: Callable[[], Backbone]) -> None:
        self.images, self.batch_size, self._source_model = images, batch_size, source_model
        self.facts: dict[str, Any] = {}

    def check(self, domains: DomainDataset, backbone: Backbone) -> None:
        """Say before the stream what would be impossible after it.

        Raises:
            ValueError: If the data set has too few source images, or of a size that the network does not take, or the
                network segments.
        """
        if not self.images:
            return
        if backbone.segments:
            raise ValueError(f"forgetting={self.images} is measured for classification only: leave it 0")
        available = len(domains.source_images())
        if self.images > available:
            raise ValueError(f"forgetting={self.images}: {domains.name} has {available} images of the source domain")
        backbone.prepare(next(iter(SourceBatches(domains.source_images(), False, 1, 0))))  # refuses a wrong size

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure, while the method is still on its device."""
        if not self.images:
            return
        assert isinstance(pl_module, TTAMethod)
        peak = peak_memory_bytes()  # of the stream, not of this measurement
        plugin = trainer.precision_plugin
        source = plugin.convert_module(self._source_model()).to(pl_module.device).eval()
        state = deepcopy(pl_module.adaptation_state())
        wrong = source_wrong = 0
        for images, labels in self._batches(trainer.datamodule):
            images, labels = images.to(pl_module.device), labels.to(pl_module.device)
            with plugin.test_step_context(), torch.no_grad():
                scores = pl_module.test_step(StreamBatch(images, labels, torch.zeros_like(labels), -1), 0).scores
                source_scores = source(source.prepare(images))
            wrong += int((scores.argmax(dim=1) != labels).sum())
            source_wrong += int((source_scores.argmax(dim=1) != labels).sum())
            pl_module.load_adaptation_state(deepcopy(state))  # an optimizer steps in the tensors that it is given
        self.facts = {
            "forgetting": 100 * (wrong - source_wrong) / self.images,
            "source_error_after": 100 * wrong / self.images,
            "source_error_before": 100 * source_wrong / self.images,
            "forgetting_images": self.images,
            "peak_memory_bytes": peak,
        }

    def _batches(self, data: StreamDataModule) -> SourceBatches:
        clean = data.domains.source_images()
        sample = Subset(clean, np.random.default_rng(0).permutation(len(clean))[: self.images])
        return SourceBatches(sample, True, self.batch_size, data.seed)
