"""Confidence intervals of errors that are measured on a sample of images. Standard library only."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.975)  # 95 % of a standard normal variable is in [-Z, Z]


def wilson(count: float, total: int) -> tuple[float, float]:
    """Confidence interval (95 %) of a proportion, in percent, for a random sample of ``total`` with ``count`` hits.

    Source: Wilson, JASA 1927; unlike the textbook interval it holds for few samples and for proportions near 0 and 1.

    Raises:
        ValueError: If there are no samples.

    Example:
        >>> [round(end, 1) for end in wilson(0, 20)]
        [0.0, 16.1]
    """
    if total < 1:
        raise ValueError("an interval needs at least one sample")
    p, z2 = count / total, Z * Z
    centre, half = p + z2 / (2 * total), Z * sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    scale = 100 / (1 + z2 / total)
    return max(0.0, scale * (centre - half)), min(100.0, scale * (centre + half))
