"""Measures predictions without labels, and compares them with those of the source model on the same images."""

from __future__ import annotations

from collections.abc import Callable

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor

from tta_bench.data.datamodule import SourceBatches
from tta_bench.datasets.base import DomainDataset, Subset
from tta_bench.functional.label_free import agreement, atc_accuracy, atc_threshold, nuclear_norm
from tta_bench.functional.statistics import SourceStatistics, batch_statistics
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import OutputKind, StreamBatch

SOURCE_IMAGES = 500  # images of the source domain, at most, for the threshold and the statistics
SOURCE_BATCH = 64


class LabelFree:
    """Predicts every batch with the source model too, and compares.

    Its forward passes are not counted and not timed: they belong to the measurement, not to the method.

    Args:
        source_model: Returns the source model.

    Attributes:
        source_scores: Scores (B, K) of the source model for the last batch.
    """

    def __init__(self, source_model: Callable[[], Backbone]) -> None:
        self._make = source_model
        self.source_scores: Tensor | None = None

    def start(self, trainer: L.Trainer, device: torch.device, last_class: int | None) -> None:
        """Load the source model and measure the source images, if there are any.

        Args:
            trainer: The trainer of the run.
            device: Where the method is.
            last_class: Predicted class of the last image before a resumed run was interrupted; None at its start.
        """
        self._plugin = trainer.precision_plugin
        self._source = self._plugin.convert_module(self._make()).to(device).eval().requires_grad_(False)
        self._last_class = last_class
        self._threshold: float | None = None
        self._statistics: SourceStatistics | None = None
        self._measure(trainer.datamodule.domains)

    def _measure(self, domains: DomainDataset) -> None:
        try:
            clean = domains.source_images()
        except ValueError:
            return
        rows = np.random.default_rng(0).permutation(len(clean))[:SOURCE_IMAGES]
        features, confidences, correct = [], [], []
        for images, labels in SourceBatches(Subset(clean, rows), True, SOURCE_BATCH, 0):
            own, scores = self._forward(images)
            confidence, predicted = scores.double().softmax(dim=1).cpu().max(dim=1)
            known = labels >= 0
            features.append(own)
            confidences.append(confidence[known])
            correct.append(predicted[known] == labels[known])
        if len(rows) > 1:
            self._statistics = SourceStatistics.measure(features)
        if len(every := torch.cat(confidences)):
            self._threshold = atc_threshold(every, torch.cat(correct))

    @torch.no_grad()
    def _forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with self._plugin.test_step_context():
            device = next(self._source.parameters()).device
            features = self._source.features(self._source.prepare(images.to(device)))
            return self._source.features_of(features), self._source.classify(features)

    def figures(self, scores: Tensor, kind: OutputKind, batch: StreamBatch) -> dict[str, float]:
        """Figures of a batch of scores (B, K), shares in [0, 1]; nan where one cannot be measured.

        ``flips`` counts the images with another class than their predecessor in the stream, and ``last_class`` is what
        the next batch needs for that.
        """
        features, self.source_scores = self._forward(batch.images)
        probabilities = kind.probabilities(scores.double())
        confidence, predicted = probabilities.max(dim=1)
        distance = atc = confidence.new_full((), torch.nan)
        if self._statistics is not None and len(features) > 1:
            distance = self._statistics.distance(batch_statistics(features)).double()
        if self._threshold is not None:
            atc = atc_accuracy(confidence, self._threshold)
        measured = {
            "confidence": confidence.mean(),
            "source_agreement": agreement(predicted, self.source_scores.argmax(dim=1)),
            "atc_accuracy": atc,
            "nuclear_norm": nuclear_norm(probabilities),
            "source_distance": distance,
            "flips": (predicted[1:] != predicted[:-1]).sum().double(),
            "last_class": predicted[-1].double(),
        }
        *numbers, first = torch.stack([*measured.values(), predicted[0].double()]).tolist()  # one synchronisation
        figures = dict(zip(measured, numbers, strict=True))
        figures["flips"] += self._last_class is not None and self._last_class != first
        self._last_class = int(figures["last_class"])
        return figures
