"""Statistics of features, class by class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot


class ClassStatistics(NamedTuple):
    """Number of features per class, their mean and their unbiased variance."""

    counts: Tensor  # (K,)
    mean: Tensor  # (K, D)
    variance: Tensor  # (K, D)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum the features of each class.

    This is one matrix product, which is deterministic, unlike scattered additions on a GPU; in float64, which tensor
    cores do not round.

    Args:
        features: (B, D).
        labels: (B,) integers below K.
        num_classes: K.

    Returns:
        Counts (K,) and sums (K, D), float64.

    Example:
        >>> class_sums(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, 1, 0]), 3)[1].tolist()
        [[4.0], [3.0], [0.0]]
    """
    members = one_hot(labels, num_classes).double().T  # (K, B)
    return members.sum(dim=1), members @ features.double()


def class_statistics(
    batches: Iterable[tuple[Tensor, Tensor]], num_classes: int, *, at_most: int, at_least: int
) -> ClassStatistics:
    """Compute the mean and unbiased variance of each class over batches of features (B, D) and labels (B,).

    Args:
        batches: Pairs of features and labels.
        num_classes: K.
        at_most: Maximum number of features; no further batches are requested.
        at_least: Classes with fewer features get the mean and the variance of all features.

    Returns:
        Statistics in float64; the variance of fewer than two features is NaN.

    Raises:
        ValueError: If there are no features.
    """
    counts = sums = torch.zeros((), dtype=torch.float64)
    left = at_most
    for features, labels in batches:
        x = features[:left].double()
        added, sums_of_batch = class_sums(torch.cat([x, x**2], dim=1), labels[:left], num_classes)
        counts, sums, left = counts + added, sums + sums_of_batch, left - len(x)
        if left <= 0:
            break
    if counts.ndim == 0:
        raise ValueError("the statistics of the classes need source images, but there are none")
    total, squares = sums.chunk(2, dim=1)
    own = _moments(counts[:, None], total, squares)
    overall = _moments(counts.sum(), total.sum(dim=0), squares.sum(dim=0))
    mean, variance = (torch.where(counts[:, None] < at_least, b, a) for a, b in zip(own, overall, strict=True))
    return ClassStatistics(counts, mean, variance)


def _moments(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    mean = total / count
    return mean, ((squares - count * mean**2) / (count - 1)).clamp(min=0)
