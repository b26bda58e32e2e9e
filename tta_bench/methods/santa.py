"""SANTA: source anchoring network and target alignment (Chakrabarty et al., TMLR 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, sgd_or_adam, soft_cross_entropy
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.class_statistics import class_statistics
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming, SourceNeed


class SANTA(TTAMethod):
    """Stay close to the source model's predictions; pull an image, its view and its nearest source prototype together.

    K classes, D feature width.

    Args:
        backbone: The source model.
        lr: Learning rate; 0.01 in the port's ImageNet-C configuration for ResNet-50.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999), the port's choices for ImageNet-C and CIFAR.
        momentum: Momentum of SGD; the port's.
        nesterov: Whether SGD uses Nesterov momentum; the port's.
        anchor_weight: Weight of the loss towards the source model; the port's.
        contrast_weight: Weight of the contrastive loss; the port's.
        temperature: Temperature of the contrastive loss; the port's.
        projection_dim: Width of the projector's two layers; the port's.
        num_source: The most labeled source images behind the prototypes; the port's.
        views: Kind of view; ``cotta`` is the port's. See ``random_view``.
        seed: Seed of the projector's initial weights and of the views.

    States:
        prototypes (K, D), the mean source feature of each class: kept by ``reset``. The projector's weights.

    Cost:
        3 forward passes (image, view, source model) and 2 backward passes per sample.

    Source:
        The paper as ported in repository mariodoebler/test-time-adaptation.

    Departures:
        Only the port was available. A class without source images is refused, where the port has NaN.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    source_need = SourceNeed.LABELED
    source_settings = ("num_source",)
    paper = "Chakrabarty et al., TMLR 2023"
    provenance = "re-implementation of the port in mariodoebler/test-time-adaptation, ResNet-50 on ImageNet-C"
    anchor: Backbone
    prototypes: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 0.01,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        nesterov: bool = True,
        anchor_weight: float = 1.0,
        contrast_weight: float = 1.0,
        temperature: float = 0.1,
        projection_dim: int = 128,
        num_source: int = 100_000,
        views: View = "cotta",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)

    def passes(self) -> tuple[float, float]:
        """Image, view and anchor forward; image and view backward."""
        return (3, 2)

    def configure_adaptation(self) -> None:
        """Train the norm layers and a projector; copy an anchor."""
        dim, width = self.backbone.feature_dim, self.hparams.projection_dim
        adapted = adapt_norm_layers(self.backbone)
        self.add_copy("anchor", moves=False)
        self.projector = nn.Sequential(self._linear(dim, width), nn.ReLU(), self._linear(width, width))
        self.adapted = [*adapted, *self.projector.parameters()]
        self.add_state(
            "prototypes", torch.zeros(self.backbone.num_classes, dim, dtype=self.backbone.dtype), source=True
        )

    def _linear(self, inputs: int, outputs: int) -> nn.Linear:
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=self.backbone.dtype)
        for p in layer.parameters():  # as torch initialises it, from our generator
            nn.init.uniform_(p, -(inputs**-0.5), inputs**-0.5, generator=self.setup_rng)
        return layer

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the norm layers and the projector."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum, nesterov=h.nesterov)

    @torch.no_grad()
    def measure_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Measure the mean feature of each class.

        Args:
            loader: Batches of source images (B, C, H, W) in [0, 1] and labels (B,).

        Raises:
            ValueError: If a class has no image.
        """
        pairs = ((self.backbone.features(x.to(self.device)), labels.to(self.device)) for x, labels in loader)
        found = class_statistics(pairs, self.backbone.num_classes, at_most=self.hparams.num_source, at_least=1)
        missing = (found.counts == 0).nonzero().flatten().tolist()
        if missing:
            raise ValueError(f"SANTA needs a source image of every class; none of class {missing[0]}: raise num_source")
        self.prototypes = found.mean.to(self.prototypes)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K), before the update."""
        h = self.hparams
        with torch.no_grad():
            anchor = self.anchor(images)
        features = self.backbone.features(images)
        features_view = self.backbone.features(random_view(images, h.views, self.rng))
        logits, logits_view = self.backbone.classify(features), self.backbone.classify(features_view)
        towards_source = (soft_cross_entropy(anchor, logits) + soft_cross_entropy(anchor, logits_view)) / 2
        triples = torch.stack([self.nearest(features), features, features_view])
        contrast = contrastive_loss(self.projector(triples), h.temperature)
        self.update(h.anchor_weight * towards_source.mean() + h.contrast_weight * contrast)
        return logits

    @torch.no_grad()
    def nearest(self, features: Tensor) -> Tensor:
        """The prototype of the largest cosine similarity with each feature: (B, D)."""
        similarities = normalize(features, dim=1) @ normalize(self.prototypes, dim=1).T
        return self.prototypes[similarities.argmax(dim=1)]


def contrastive_loss(embeddings: Tensor, temperature: float) -> Tensor:
    """How hard it is to find the other two embeddings of an image among all others, by cosine similarity.

    Args:
        embeddings: (3, B, P), three of each image.
        temperature: Divides the similarities.

    Returns:
        Mean cross-entropy over all embeddings and their two partners, ().

    Source: Supervised contrastive learning (Khosla et al., NeurIPS 2020), Eq. 2.
    """
    flat = normalize(embeddings.flatten(0, 1), dim=1)
    itself = torch.eye(len(flat), dtype=torch.bool, device=flat.device)
    similarities = (flat @ flat.T / temperature).masked_fill(itself, -torch.inf)
    rows, batch_size = torch.arange(len(flat), device=flat.device), embeddings.shape[1]
    partners = (rows.roll(batch_size), rows.roll(-batch_size))
    return (cross_entropy(similarities, partners[0]) + cross_entropy(similarities, partners[1])) / 2
