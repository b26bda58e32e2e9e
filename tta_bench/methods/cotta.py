"""CoTTA: continual test-time domain adaptation (Wang et al., CVPR 2022)."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from tta_bench.functional import (
    adapt_weights_and_biases,
    ema_update,
    sgd_or_adam,
    soft_cross_entropy,
    stochastic_restore,
    symmetric_cross_entropy,
)
from tta_bench.functional.augment import View, random_view
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbone import Backbone
from tta_bench.types import PredictionTiming


class CoTTA(TTAMethod):
    """Follow a weight-averaged teacher, which averages over views when in doubt, and forget back to the source.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-4 in ViDA's and DPCore's ImageNet-C configurations for ViT-B. CoTTA itself has 0.01 for
            ResNet-50; FOA tuned 0.005 and yuyongcan/Benchmark-TTA 0.002 for ViT-B.
        optimizer: ``sgd`` (released ImageNet code) or ``adam`` (betas 0.9, 0.999; released CIFAR code).
        momentum: Momentum of SGD; released code.
        nesterov: Whether SGD looks ahead; released code.
        loss: ``symmetric`` (released ImageNet code) or ``cross_entropy`` (Eq. 1 and released CIFAR code).
        teacher_momentum: Share of the teacher that an update keeps; paper.
        restore_probability: Probability that a weight returns to its source value; 0.001 in the released ImageNet
            code, 0.01 on CIFAR.
        threshold: The teacher averages over views if the source model's mean confidence on a batch is below; 0.1 in
            the released ImageNet code, 0.92 and 0.72 on CIFAR10 and CIFAR100.
        num_views: Views to average; paper.
        views: Kind of view; ``cotta`` is the published one. See ``random_view``.
        seed: Seed of views and of restored weights.

    States:
        The teacher's weights. The anchor keeps the source's.

    Cost:
        3 forward passes (student, teacher, source model), ``num_views`` more in doubt; 1 backward pass per sample.

    Source:
        Eq. 1-8 of the paper; repository qinenergy/cotta.

    Departures:
        The views are computed only if they are used, where the released CIFAR code computes them always. Networks stay
        in eval mode. ``loss`` decides between the paper and the released ImageNet code.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    paper = "Wang et al., CVPR 2022"
    provenance = "ViDA's ImageNet-C configuration for ViT-B"
    teacher: Backbone
    anchor: Backbone

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        nesterov: bool = True,
        loss: Literal["symmetric", "cross_entropy"] = "symmetric",
        teacher_momentum: float = 0.999,
        restore_probability: float = 0.001,
        threshold: float = 0.1,
        num_views: int = 32,
        views: View = "cotta",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._loss = {"symmetric": symmetric_cross_entropy, "cross_entropy": soft_cross_entropy}[loss]
        self._confidence, self._in_doubt = math.nan, False  # for the log only

    def passes(self) -> tuple[float, float]:
        """Student, teacher and anchor forward, the views in doubt; the student backward."""
        return (3 + self.hparams.num_views * self._in_doubt, 1)

    def configure_adaptation(self) -> None:
        """Train all weights and biases; copy a teacher and an anchor."""
        self.adapted = adapt_weights_and_biases(self.backbone)
        self.add_copy("teacher")
        self.add_copy("anchor", moves=False)

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over all weights and biases."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum, nesterov=h.nesterov)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> the teacher's logits (B, K), before its update."""
        target = self._teach(images)
        self.update(self._loss(self.backbone(images), target).mean())
        ema_update(self.teacher, self.backbone, self.hparams.teacher_momentum)
        if self.hparams.restore_probability > 0:
            draw = partial(self.draw_mask, self.device_rng())
            stochastic_restore(self.adapted, self.initial_values(self.adapted), draw)
        return target

    @torch.no_grad()
    def _teach(self, images: Tensor) -> Tensor:  # Eq. 3-4
        self._confidence = float(self.anchor(images).softmax(dim=1).amax(dim=1).mean())
        self._in_doubt = self._confidence < self.hparams.threshold
        logits = self.teacher(images)
        if not self._in_doubt:
            return logits
        views = (random_view(images, self.hparams.views, self.rng) for _ in range(self.hparams.num_views))
        return torch.stack([self.teacher(view) for view in views]).mean(dim=0)

    def draw_mask(self, rng: torch.Generator, parameter: Tensor) -> Tensor:
        """Which entries of a tensor return to the source: a boolean mask of its shape (Eq. 7)."""
        mask = torch.empty(parameter.shape, dtype=torch.bool, device=parameter.device)
        return mask.bernoulli_(self.hparams.restore_probability, generator=rng)

    def diagnostics(self) -> dict[str, float]:
        """The source model's mean confidence on the last batch, and whether the teacher averaged over views."""
        return {"anchor_confidence": self._confidence, "averages_views": float(self._in_doubt)}
