"""Source: the unadapted model, the baseline of every table."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_bench.methods.base import TTAMethod
from tta_bench.types import PredictionTiming


class Source(TTAMethod):
    """Predict with the source model and learn nothing.

    Cost:
        1 forward pass and no backward pass per sample.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    paper = "no adaptation"
    provenance = "nothing to choose"

    def passes(self) -> tuple[float, float]:
        """1 forward, 0 backward."""
        return (1, 0)

    def configure_adaptation(self) -> None:
        """Freeze everything."""
        self.backbone.requires_grad_(False)

    @torch.no_grad()
    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K), of pixels (B, K, H, W)."""
        return self.backbone(images)
