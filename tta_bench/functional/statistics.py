"""Feature statistics and the distance between two of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tta_bench.functional.entropy import at_least_float32


class Statistics(NamedTuple):
    """Mean and standard deviation of a set of features, each of shape (..., D)."""

    mean: Tensor
    std: Tensor


def batch_statistics(features: Tensor) -> Statistics:
    """Mean and unbiased standard deviation over a batch; of maps, those of ``map_statistics``, averaged over the batch.

    Args:
        features: Features of shape (N, D), N >= 2, or maps (N, D, h, w).

    Returns:
        Mean and standard deviation, each of shape (D,), at least float32.

    Raises:
        ValueError: If N < 2, or maps have one position; the standard deviation of one sample is undefined, and a NaN
            must not spread.

    Source: DPCore (Zhang et al., ICML 2025), Sec. 4.1; of maps: ours.
    """
    if features.ndim == 4:
        of_images = map_statistics(features)
        return Statistics(of_images.mean.mean(dim=0), of_images.std.mean(dim=0))
    if len(features) < 2:
        raise ValueError(f"a standard deviation needs at least 2 samples, got {len(features)}")
    std, mean = torch.std_mean(at_least_float32(features), dim=0)
    return Statistics(mean, std)


def map_statistics(maps: Tensor) -> Statistics:
    """Mean and unbiased standard deviation over the positions of each map: one image has statistics of its own.

    Args:
        maps: (N, D, h, w), of at least two positions.

    Returns:
        Mean and standard deviation, each of shape (N, D), at least float32.

    Raises:
        ValueError: If there is one position.

    Example:
        >>> map_statistics(torch.tensor([[[[1.0, 2.0, 3.0]]]]))
        Statistics(mean=tensor([[2.]]), std=tensor([[1.]]))
    """
    if maps.shape[2:].numel() < 2:
        raise ValueError("a standard deviation needs at least 2 positions of a map, got 1: give larger images")
    std, mean = torch.std_mean(at_least_float32(maps), dim=(2, 3))
    return Statistics(mean, std)


def statistics_distance(a: Statistics, b: Statistics) -> Tensor:
    """Distance ||mean_a - mean_b||_2 + ||std_a - std_b||_2 over the last axis.

    Args:
        a: Statistics of shape (..., D).
        b: Statistics of a shape that broadcasts with ``a``; (M, D) gives M distances.

    Returns:
        Distances of shape (...), in feature units.

    Source: DPCore (Zhang et al., ICML 2025), Eq. 5.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> statistics_distance(Statistics(zero, one), Statistics(torch.tensor([3.0, 4.0]), one))
        tensor(5.)
    """
    norm = torch.linalg.vector_norm
    return norm(a.mean - b.mean, dim=-1) + norm(a.std - b.std, dim=-1)
