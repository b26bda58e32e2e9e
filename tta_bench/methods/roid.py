"""ROID: universal test-time adaptation by weight ensembling and diversity weighting (Marsden et al., WACV 2024)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.optim import Optimizer

from tta_bench.functional import (
    adapt_norm_layers,
    lerp,
    sgd_or_adam,
    soft_likelihood_ratio,
    softmax_entropy,
    symmetric_cross_entropy,
)
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.entropy import at_least_float32
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class ROID(TTAMethod):
    """Sharpen certain and diverse predictions, keep them stable under augmentation, and stay close to the source.

    After each update the weights move a little towards the source, and predictions are corrected for the classes that
    the batch seems to consist of.

    Args:
        backbone: The source model.
        lr: Learning rate; 2.5e-4 in the released configuration for ImageNet-C, which serves ViT-B too.
        optimizer: ``sgd`` (Nesterov's momentum) or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD; 0.9 in the released code.
        source_momentum: Share of themselves that the weights keep after a step, the rest is the source's; 0.99 in the
            paper.
        temperature: Of the weights, exp(diversity * certainty / temperature); 1/3 in the paper.
        probability_momentum: Share that the running mean of predictions keeps; 0.9 in the released code.
        prior_correction: Whether the smoothed class frequencies of the batch multiply the ``logits`` (released code)
            or the ``probabilities`` (what correcting a prior means), or ``none``.
        views: Kind of view that predictions are kept stable under; ``roid`` in the released code. See ``random_view``.
        seed: Seed of the views.

    States:
        mean_probabilities (K,): running mean of predictions, uniform before the first batch.

    Cost:
        1 forward pass, another for the share of selected images, and twice that share in backward passes per sample.

    Source:
        The paper's method without its batch norm variants; repository mariodoebler/test-time-adaptation.

    Departures:
        The loss is divided by the number of images in the batch; the released code takes the configured batch size,
        also for the short last batch. Where all images are equally diverse (a batch of one is), all are selected with
        weight 1, where the released code divides by zero.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    paper = "Marsden et al., WACV 2024"
    provenance = "released code (mariodoebler/test-time-adaptation), ImageNet-C (one setting for all networks)"
    mean_probabilities: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 2.5e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        source_momentum: float = 0.99,
        temperature: float = 1 / 3,
        probability_momentum: float = 0.9,
        prior_correction: Literal["logits", "probabilities", "none"] = "logits",
        views: View = "roid",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._selected, self._batch_size = math.nan, 1  # of the last batch

    def configure_adaptation(self) -> None:
        """Train the norm layers only."""
        self.adapted = adapt_norm_layers(self.backbone)
        classes = self.backbone.num_classes
        digits = torch.promote_types(self.backbone.dtype, torch.float32)  # averages are never in half precision
        self.add_state("mean_probabilities", torch.full((classes,), 1 / classes, dtype=digits))

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum, nesterov=True)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) before the update, corrected for the batch's classes."""
        logits = self.backbone(images)
        weights, selected = self.weigh(logits.detach())
        weights, chosen = weights[selected], logits[selected]
        self._selected, self._batch_size = len(chosen), len(images)
        view = random_view(images[selected], self.hparams.views, self.rng)
        # Gradients flow through both predictions: neither is a teacher.
        losses = soft_likelihood_ratio(chosen) + symmetric_cross_entropy(self.backbone(view), chosen)
        self.update((weights * losses).sum() / len(images))
        self.ensemble()
        return self.corrected(logits.detach())

    def weigh(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (B,) and which images (B,) are at least as diverse as the mean; updates the running mean."""
        p = at_least_float32(logits).softmax(dim=1)
        diversity = unit_range(1 - cosine_similarity(self.mean_probabilities, p, dim=1))
        certainty = unit_range(-softmax_entropy(logits))
        kept = self.hparams.probability_momentum
        self.mean_probabilities = kept * self.mean_probabilities + (1 - kept) * p.mean(dim=0)
        return (diversity * certainty / self.hparams.temperature).exp(), diversity >= diversity.mean()

    def ensemble(self) -> None:
        """Move the adapted weights towards the source."""
        lerp(self.adapted, self.initial_values(self.adapted), 1 - self.hparams.source_momentum)

    def corrected(self, logits: Tensor) -> Tensor:
        """Logits (B, K) in favour of the classes that the batch seems to have."""
        if self.hparams.prior_correction == "none":
            return logits
        count, classes = logits.shape
        prior = at_least_float32(logits).softmax(dim=1).mean(dim=0)
        smooth = max(1 / count, 1 / classes) / prior.max()
        prior = (prior + smooth) / (1 + smooth * classes)
        return logits * prior if self.hparams.prior_correction == "logits" else logits + prior.log()

    def passes(self) -> tuple[float, float]:
        """1 forward and 1 for the selected images; 2 backward for these."""
        share = self._selected / self._batch_size
        return (1 + share, 2 * share)

    def diagnostics(self) -> dict[str, float]:
        """Selected images of the last batch."""
        return {"selected": float(self._selected)}


def unit_range(x: Tensor) -> Tensor:
    """Map the smallest value to 0 and the largest to 1; equal values all to 0."""
    low, high = x.aminmax()
    return (x - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
