"""Tent: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, sgd_or_adam, softmax_entropy
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbone import Backbone
from tta_bench.types import PredictionTiming


class Tent(TTAMethod):
    """Minimise the mean prediction entropy of each batch over the affine parameters of the norm layers.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-4 in ViDA's ImageNet-C configuration for ViT-B, the origin of the CTTA tables.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        nesterov: Whether SGD looks ahead, as in ViDA's configuration; the SAR and DPCore code bases do not.
        steps: Updates per batch.
        seed: Unused: Tent draws nothing.

    Cost:
        ``steps`` forward and ``steps`` backward passes per sample.

    Source:
        Eq. 1 of the paper; repository DequanWang/tent.

    Departures:
        Every norm layer is adapted, where the official code collects BatchNorm2d only, which a ViT has not.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    paper = "Wang et al., ICLR 2021"
    provenance = "ViDA's ImageNet-C configuration for ViT-B"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        nesterov: bool = True,
        steps: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)

    def passes(self) -> tuple[float, float]:
        """``steps`` forward and backward."""
        return (self.hparams.steps, self.hparams.steps)

    def configure_adaptation(self) -> None:
        """Train the norm layers only."""
        self.adapted = adapt_norm_layers(self.backbone)

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum, nesterov=h.nesterov)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) of the last forward pass, before its update."""
        for _ in range(self.hparams.steps):
            logits = self.backbone(images)
            self.update(softmax_entropy(logits).mean())
        return logits
