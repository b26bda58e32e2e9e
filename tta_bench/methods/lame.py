"""LAME: Laplacian adjusted maximum-likelihood estimation (Boudiaf et al., CVPR 2022)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tta_bench.functional.entropy import at_least_float32
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import OutputKind, PredictionTiming


class LAME(TTAMethod):
    """Adapt the predictions of a batch to each other and leave the model alone: neighbours get the same class.

    B images, K classes. Made for streams whose neighbouring images share a class; on shuffled ones it can harm.

    Args:
        backbone: The source model.
        affinity: How alike two features are: ``knn`` (1 for the nearest neighbours of the row's image, else 0),
            ``rbf`` (Gaussian kernel) or ``linear`` (inner product). knn in repository mr-eggplant/FOA (ViT-B on
            ImageNet-C) and in the paper's best configuration, rbf by default in fiveai/LAME.
        neighbors: Nearest neighbours of an image for ``knn``; 5 in both. For ``rbf`` the kernel's width is the mean
            distance to the neighbour of this rank, the image itself being the first.
        symmetric: Whether the affinity is averaged with its transpose, as in mr-eggplant/FOA; fiveai/LAME does not.
        seed: Not used; the method draws no random numbers.

    Cost:
        1 forward pass and no backward pass per sample; the corrections are in closed form.

    Source:
        The paper's Laplacian adjusted objective and its bound optimisation; repository fiveai/LAME.

    Departures:
        If all distances are zero, as in a batch of one image, the Gaussian kernel is 1, where the released code
        divides by zero.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    output_kind = OutputKind.PROBABILITIES
    paper = "Boudiaf et al., CVPR 2022"
    provenance = "mr-eggplant/FOA, ViT-B on ImageNet-C"

    def __init__(
        self,
        backbone: Backbone,
        *,
        affinity: Literal["knn", "rbf", "linear"] = "knn",
        neighbors: int = 5,
        symmetric: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._last = {"energy": math.nan, "iterations": math.nan}

    def passes(self) -> tuple[float, float]:
        """1 forward, 0 backward."""
        return (1, 0)

    def configure_adaptation(self) -> None:
        """Freeze everything."""
        self.backbone.requires_grad_(False)

    @torch.no_grad()
    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> probabilities (B, K)."""
        features = self.backbone.features(images)
        probabilities = at_least_float32(self.backbone.classify(features)).softmax(dim=1)
        affinity = self.affinity(normalize(at_least_float32(features), dim=1))
        if self.hparams.symmetric:
            affinity = (affinity + affinity.T) / 2
        assigned, energy, iterations = assign(probabilities, affinity)
        self._last = {"energy": energy, "iterations": float(iterations)}
        return assigned

    def affinity(self, features: Tensor) -> Tensor:
        """Unit vectors (B, D) -> (B, B)."""
        k, size = self.hparams.neighbors, len(features)
        if self.hparams.affinity == "linear":
            return features @ features.T
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")  # exact near zero
        if self.hparams.affinity == "rbf":
            width = distances.topk(min(k, size), largest=False).values[:, -1].mean()
            return (-(distances**2) / (2 * width**2).clamp(min=torch.finfo(width.dtype).tiny)).exp()
        nearest = distances.topk(min(k + 1, size), largest=False).indices[:, 1:]  # the first is the image itself
        return torch.zeros_like(distances).scatter_(1, nearest, 1.0)

    def diagnostics(self) -> dict[str, float]:
        """Energy reached for the last batch, and the iterations that it took."""
        return self._last


def assign(probabilities: Tensor, affinity: Tensor, max_iterations: int = 100) -> tuple[Tensor, float, int]:
    """Make predictions agree with those of alike images, by a concave-convex procedure.

    Args:
        probabilities: Of the model, (B, K).
        affinity: How alike images are, (B, B).
        max_iterations: Bound on the iterations; they end when the energy changes by less than a relative 1e-8.

    Returns:
        Probabilities (B, K), their energy and the number of iterations.

    Source: LAME (Boudiaf et al., CVPR 2022), repository fiveai/LAME.
    """
    unary = (probabilities + 1e-10).log()
    assigned, energy = unary.softmax(dim=1), math.inf
    for iteration in range(1, max_iterations + 1):
        pairwise = affinity @ assigned
        assigned = (unary + pairwise).softmax(dim=1)
        before = energy
        energy = float((assigned * (assigned.clamp(min=1e-20).log() - unary - pairwise)).sum())
        if iteration > 2 and abs(energy - before) <= 1e-8 * abs(before):
            break
    return assigned, energy, iteration
