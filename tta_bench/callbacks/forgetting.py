"""Forgetting: the loss in accuracy on the source domain, measured at the end of the stream."""

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
    """Evaluates the method on source images, starting from its state at the end of the stream, and the source model.

    The state is restored before every batch, so that a method which relearns the source domain within a few batches
    does not hide what it had forgotten; a method that predicts after its update keeps the benefit of that one update.
    Afterwards the method is in its state at the end of the stream. Images are resized and normalised like those of the
    stream, however the source images for the method's source phase were prepared.

    The stream never shows these images, but they are not test images: the source model has often been trained on them,
    and a method with a source phase has learned from some. Only the difference of the errors is therefore meaningful.

    Args:
        images: Number of source images, drawn from those of the data set; the same for every method and seed.
            0 disables the measurement.
        batch_size: Images per batch, as in the stream; the last batch may be smaller.
        source_model: Returns the source model.

    Attributes:
        facts: For ``result.json``, once the stream has ended: ``forgetting`` (error after the stream minus that of the
            source model, in percentage points), both errors in percent, the number of images, and the peak memory of
            the stream.
    """

    def __init__(self, images: int, batch_size: int, source_model: Callable[[], Backbone]) -> None:
        self.images, self.batch_size, self._source_model = images, batch_size, source_model
        self.facts: dict[str, Any] = {}

    def check(self, domains: DomainDataset, backbone: Backbone) -> None:
        """Check before the stream that forgetting can be measured after it.

        Raises:
            ValueError: If the data set has too few source images, if their size does not fit the network, or if the
                network is a segmentation network.
        """
        if not self.images:
            return
        if backbone.segments:
            raise ValueError(f"forgetting={self.images}: forgetting is measured only for classification; set it to 0")
        available = len(domains.source_images())
        if self.images > available:
            raise ValueError(f"forgetting={self.images}: {domains.name} has only {available} source images")
        backbone.prepare(next(iter(SourceBatches(domains.source_images(), False, 1, 0))))  # refuses a wrong size

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure, while the method is still on its device."""
        if not self.images:
            return
        assert isinstance(pl_module, TTAMethod)
        peak = peak_memory_bytes()  # of the stream, without this measurement
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
            pl_module.load_adaptation_state(state)
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
