"""Tent: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, hard_cross_entropy, sgd_or_adam, softmax_entropy
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class Tent(TTAMethod):
    """Minimise the mean prediction entropy of each batch over the affine parameters of the norm layers.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-4 in ViDA's ImageNet-C configuration for ViT-B, the origin of the CTTA tables.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        nesterov: Whether SGD uses Nesterov momentum, as in ViDA's configuration; the SAR and DPCore code bases do not.
        steps: Updates per batch.
        loss: ``entropy``, or ``hard_label``, the cross-entropy with the predicted class, which the "Tent" rows of
            Cityscapes-to-ACDC tables minimise (code of CoTTA in repository Anonymous-012/SVDP).
        seed: Not used; the method draws no random numbers.

    Cost:
        ``steps`` forward and ``steps`` backward passes per sample.

    Source:
        Eq. 1 of the paper; repository DequanWang/tent.

    Departures:
        Every norm layer is adapted, where the official code collects BatchNorm2d only, a layer that a ViT does not
        have. On pixels, the loss is the mean over all of them, and batch norm keeps the source statistics, as in that
        code. That code also discards Adam's moments at the start of each domain, which a method here cannot see.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    segments = True
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
        loss: Literal["entropy", "hard_label"] = "entropy",
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
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) of the last pass, before its update."""
        for _ in range(self.hparams.steps):
            logits = self.backbone(images)
            self.update(self._loss(logits).mean())
        return logits

    def _loss(self, logits: Tensor) -> Tensor:
        return softmax_entropy(logits) if self.hparams.loss == "entropy" else hard_cross_entropy(logits, logits)
