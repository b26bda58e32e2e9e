"""Estimates of accuracy that need no labels of the images they are about."""

from __future__ import annotations

import torch
from torch import Tensor


def atc_threshold(confidences: Tensor, correct: Tensor) -> float:
    """Confidence below which as many labelled source images lie as are classified wrongly.

    Args:
        confidences: (N,) largest probability of each image.
        correct: (N,) whether each is classified correctly.

    Raises:
        ValueError: If there are no images.

    Source: Garg et al., ICLR 2022 (average thresholded confidence, ATC-MC), Eq. 1.

    Example:
        >>> atc_threshold(torch.tensor([0.9, 0.3, 0.6, 0.8]), torch.tensor([True, False, True, True])) > 0.5
        True
    """
    if len(confidences) == 0:
        raise ValueError("a threshold needs at least one labelled image")
    wrong = int((~correct).sum())
    ordered = confidences.sort().values
    return float(ordered[wrong]) if wrong < len(ordered) else float("inf")


def atc_accuracy(confidences: Tensor, threshold: float) -> Tensor:
    """Estimated accuracy () in [0, 1]: the share of images whose confidence (N,) reaches the threshold.

    Source: Garg et al., ICLR 2022, Eq. 2.
    """
    return (confidences >= threshold).double().mean()


def nuclear_norm(probabilities: Tensor) -> Tensor:
    """Nuclear norm of a matrix of predictions (N, K), divided by its upper bound: () in [0, 1].

    High if predictions are confident and spread over the classes, so it falls when a method collapses.

    Source: Deng et al., ICML 2023 ("Confidence and Dispersity Speak"), Eq. 2.

    Example:
        >>> float(nuclear_norm(torch.eye(4)))
        1.0
    """
    n, k = probabilities.shape
    return torch.linalg.svdvals(probabilities.double()).sum() / (min(n, k) * n) ** 0.5


def agreement(predicted: Tensor, other: Tensor) -> Tensor:
    """Share () of images (N,) for which two models predict the same class.

    Source: as an estimate of accuracy, Jiang et al., ICLR 2022 ("Assessing Generalization of SGD via Disagreement");
        there, the models are trained independently, which an adapted model and its source are not.
    """
    return (predicted == other).double().mean()
