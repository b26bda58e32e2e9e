"""Feature statistics and the distance between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tta_bench.functional.entropy import at_least_float32


class Statistics(NamedTuple):
    """Mean and standard deviation of a set of features, each of shape (..., D)."""

    mean: Tensor
    std: Tensor


def batch_statistics(features: Tensor) -> Statistics:
    """Mean and unbiased standard deviation over a batch; for maps, ``map_statistics`` averaged over the batch.

    Args:
        features: Features of shape (N, D), N >= 2, or maps (N, D, h, w).

    Returns:
        Mean and standard deviation, each of shape (D,), at least float32.

    Raises:
        ValueError: If N < 2, or maps have only one position: the standard deviation of one sample is undefined, and
            NaN would propagate.

    Source: DPCore (Zhang et al., ICML 2025), Sec. 4.1; for maps: ours.
    """
    if features.ndim == 4:
        of_images = map_statistics(features)
        return Statistics(of_images.mean.mean(dim=0), of_images.std.mean(dim=0))
    if len(features) < 2:
        raise ValueError(f"a standard deviation needs at least 2 samples, got {len(features)}")
    std, mean = torch.std_mean(at_least_float32(features), dim=0)
    return Statistics(mean, std)


def map_statistics(maps: Tensor) -> Statistics:
    """Mean and unbiased standard deviation over the positions of each map, separately for each image.

    Args:
        maps: (N, D, h, w), with at least two positions.

    Returns:
        Mean and standard deviation, each of shape (N, D), at least float32.

    Raises:
        ValueError: If there is only one position.

    Example:
        >>> map_statistics(torch.tensor([[[[1.0, 2.0, 3.0]]]]))
        Statistics(mean=tensor([[2.]]), std=tensor([[1.]]))
    """
    if maps.shape[2:].numel() < 2:
        raise ValueError("a standard deviation needs at least 2 positions of a map, got 1: use larger images")
    std, mean = torch.std_mean(at_least_float32(maps), dim=(2, 3))
    return Statistics(mean, std)


def statistics_distance(a: Statistics, b: Statistics) -> Tensor:
    """Distance ||mean_a - mean_b||_2 + ||std_a - std_b||_2 over the last axis.

    Args:
        a: Statistics of shape (..., D).
        b: Statistics whose shape broadcasts with ``a``; (M, D) results in M distances.

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


class SourceStatistics(NamedTuple):
    """Statistics of source images, and the expected distance of clean batches to them due to sampling alone.

    Attributes:
        mean: (D,).
        std: (D,).
        spread: (), the mean distance of a single image. A single feature vector has no standard deviation; for
            features it is the value for which ``floor`` is correct for Gaussian batches: the norm of ``std`` for the
            mean, plus the same over sqrt 2 for the standard deviation.
    """

    mean: Tensor
    std: Tensor
    spread: Tensor

    @classmethod
    def measure(cls, batches: Iterable[Tensor]) -> SourceStatistics:
        """Compute the statistics over all batches together.

        Args:
            batches: Features of source images, (B, D), or maps (B, D, h, w), whose sizes may differ between batches.

        Raises:
            ValueError: As in ``batch_statistics``.

        Source: DPCore (Zhang et al., ICML 2025), Sec. 4.1; for maps, and the spread: ours.
        """
        features, maps = [], []
        for batch in batches:
            if batch.ndim == 4:  # maps are large, so only their statistics are kept
                maps.append(map_statistics(batch))
            else:
                features.append(batch)
        if not maps:
            stats = batch_statistics(torch.cat(features))
            return cls(*stats, torch.linalg.vector_norm(stats.std) * (1 + 0.5**0.5))
        of_images = Statistics(*(torch.cat(parts) for parts in zip(*maps, strict=True)))  # (N, D) each
        stats = Statistics(of_images.mean.mean(dim=0), of_images.std.mean(dim=0))
        return cls(*stats, statistics_distance(of_images, stats).mean())

    def distance(self, stats: Statistics) -> Tensor:
        """Distance of a batch's statistics (D,) to the source, () (Eq. 5 of DPCore)."""
        return statistics_distance(stats, Statistics(self.mean, self.std))

    def floor(self, num_images: int, num_source: int) -> Tensor:
        """Expected distance () of clean batches, due to the sampling of the batch and of the source images.

        Args:
            num_images: Number of images of the batch.
            num_source: Number of images of these statistics.
        """
        return self.spread * (1 / num_images + 1 / num_source) ** 0.5
