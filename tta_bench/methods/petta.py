"""PeTTA: persistent test-time adaptation in recurring testing scenarios (Hoang et al., NeurIPS 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.optim import Adam, Optimizer

from tta_bench.functional import (
    adapt_norm_layers,
    ema_update,
    soft_cross_entropy,
    softmax_entropy,
    symmetric_cross_entropy,
)
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.class_statistics import class_statistics, class_sums
from tta_bench.functional.memory import CSTU
from tta_bench.functional.robust_bn import following, use_robust_batch_norm
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming, SourceNeed

DIAGNOSTICS = ("divergence", "teacher_share", "memory_size")


class PeTTA(TTAMethod):
    """RoTTA that senses how far it has diverged from the source, and then adapts less and regularises more.

    K classes, D feature width.

    Args:
        backbone: The source model.
        lr: Learning rate of Adam (betas 0.9, 0.999); released code, for batch norm networks.
        memory_size: N, the capacity of the memory; released code.
        loss: ``cross_entropy`` of the view with the teacher (released ImageNet-C setting), or ``symmetric``, of the
            image and of the view (released CIFAR setting).
        alpha0: Share of the student that the teacher takes where nothing has diverged; released code.
        lambda0: Weight of the regulariser where everything has diverged; 1 in the released ImageNet-C setting, 10 on
            CIFAR.
        anchor_weight: Weight of the loss towards the source model; released code.
        prototype_share: Share of a batch in the running class means; released code.
        age_weight: lambda_t in the score of a stored image; RoTTA.
        entropy_weight: lambda_u in the score of a stored image; RoTTA.
        robust_alpha: Share of a batch in the statistics of robust batch norm; RoTTA. No effect without batch norm.
        num_source: The most source images behind the source statistics; released code.
        views: Kind of view that the student sees; ``cotta`` is the published one. See ``random_view``.
        seed: Seed of the views.

    States:
        source_mean, source_variance (K, D) of the features that the source model assigns to each class: kept by
        ``reset``. The teacher's weights, class_mean (K, D), the memory, and the statistics of batch norm layers.

    Cost:
        1 + 3M / B forward passes and M / B backward passes per sample with M <= N images in memory; symmetric:
        1 + 4M / B and 2M / B.

    Source:
        Alg. 1 of the paper; repository hthieu166/petta.

    Departures:
        Layer and group norms have no statistics to be robust; their affine parameters are trained. The released code
        also shows the images without a view to the student where its loss does not need them, which moves the
        statistics of batch norm. A class with fewer than two source images has the mean and variance of all, where
        the released code has NaN. Dropout and stochastic depth stay off.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    source_need = SourceNeed.UNLABELED
    source_settings = ("num_source",)
    paper = "Hoang et al., NeurIPS 2024"
    provenance = "released code (hthieu166/petta), ResNet-50 on ImageNet-C; none was published for ViT-B"
    teacher: Backbone
    anchor: Backbone
    source_mean: Tensor
    source_variance: Tensor
    class_mean: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        memory_size: int = 64,
        loss: Literal["cross_entropy", "symmetric"] = "cross_entropy",
        alpha0: float = 1e-3,
        lambda0: float = 1.0,
        anchor_weight: float = 1.0,
        prototype_share: float = 0.05,
        age_weight: float = 1.0,
        entropy_weight: float = 1.0,
        robust_alpha: float = 0.05,
        num_source: int = 100_000,
        views: View = "cotta",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._passes = (0.0, 0.0)
        self._last = dict.fromkeys(DIAGNOSTICS, math.nan)  # for the log only

    def passes(self) -> tuple[float, float]:
        """The teacher on the batch; teacher, source model and student on the memory."""
        return self._passes

    def configure_adaptation(self) -> None:
        """Train the norm layers, robust ones in place of batch norm; copy a teacher and an anchor."""
        h, classes = self.hparams, self.backbone.num_classes
        use_robust_batch_norm(self.backbone, h.robust_alpha)
        self.adapted = adapt_norm_layers(self.backbone)
        self.add_copy("teacher")
        self.add_copy("anchor", moves=False)
        self.memory = CSTU(h.memory_size, classes, age_weight=h.age_weight, entropy_weight=h.entropy_weight)
        digits = torch.promote_types(self.backbone.dtype, torch.float32)  # statistics are never in half precision
        nothing = torch.zeros(classes, self.backbone.feature_dim, dtype=digits)
        self.add_state("source_mean", nothing, source=True)
        self.add_state("source_variance", nothing, source=True)
        self.add_state("class_mean", nothing)

    def configure_optimizers(self) -> Optimizer:
        """Adam over the norm layers."""
        return Adam(self.adapted, lr=self.hparams.lr)

    @torch.no_grad()
    def measure_source(self, loader: Iterable[Tensor]) -> None:
        """Measure mean and variance of the features that the source model assigns to each class.

        Args:
            loader: Batches of source images (B, C, H, W) in [0, 1].

        Raises:
            ValueError: If no image arrives.
        """
        features = (self.backbone.features(images.to(self.device)) for images in loader)
        labelled = ((x, self.backbone.classify(x).argmax(dim=1)) for x in features)
        found = class_statistics(labelled, self.backbone.num_classes, at_most=self.hparams.num_source, at_least=2)
        self.source_mean = found.mean.to(self.source_mean)
        self.source_variance = found.variance.to(self.source_mean)
        self.class_mean = self.source_mean.clone()

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> the teacher's logits (B, K), before its update."""
        with torch.no_grad():
            features = self.teacher.features(images)
            logits = self.teacher.classify(features)
        labels = logits.argmax(dim=1)
        self.memory.add(images, labels, softmax_entropy(logits))
        divergence = self.sense(features, labels)
        share = float((1 - divergence) * self.hparams.alpha0)
        self.update(self.loss(divergence))
        ema_update(self.teacher, self.backbone, 1 - share)
        ratio, symmetric = len(self.memory) / len(images), self.hparams.loss == "symmetric"
        self._passes = (1 + (3 + symmetric) * ratio, (1 + symmetric) * ratio)
        self._last = dict(zip(DIAGNOSTICS, (float(divergence), share, float(len(self.memory))), strict=True))
        return logits

    @torch.no_grad()
    def sense(self, features: Tensor, labels: Tensor) -> Tensor:
        """How far the predicted classes' running means are from the source, in [0, 1); then let them follow."""
        counts, sums = (t.to(self.class_mean) for t in class_sums(features, labels, self.backbone.num_classes))
        present = counts[:, None] > 0
        distances = (self.class_mean - self.source_mean) ** 2 / (self.source_variance + 1e-6)
        distance = torch.where(present, distances, 0).mean(dim=1).sum() / present.sum()
        moved = self.class_mean.lerp(sums / counts.clamp(min=1)[:, None], self.hparams.prototype_share)
        self.class_mean = torch.where(present, moved, self.class_mean)
        return 1 - torch.exp(-distance)

    def loss(self, divergence: Tensor) -> Tensor:
        """The loss on the images in memory, for a divergence () from the source."""
        h, images = self.hparams, self.memory.images
        with following(self.backbone, self.teacher, self.anchor):
            with torch.no_grad():
                target, source = self.teacher(images), self.anchor(images)
            view = self.backbone(random_view(images, h.views, self.rng))
            if h.loss == "symmetric":
                both = (self.backbone(images), view)
                adaptation = sum(symmetric_cross_entropy(logits, target) for logits in both) / 2
            else:
                adaptation = soft_cross_entropy(view, target)
        towards_source = h.anchor_weight * soft_cross_entropy(view, source)
        return (adaptation + towards_source).mean() + divergence * h.lambda0 * self.regulariser()

    def regulariser(self) -> Tensor:
        """Minus the mean cosine similarity of the trained tensors with their source values."""
        pairs = zip(self.adapted, self.initial_values(self.adapted), strict=True)
        return -torch.stack([cosine_similarity(p.flatten(), source.flatten(), dim=0) for p, source in pairs]).mean()

    def diagnostics(self) -> dict[str, float]:
        """Divergence from the source in [0, 1), the teacher's share of the student, and images in memory."""
        return self._last
