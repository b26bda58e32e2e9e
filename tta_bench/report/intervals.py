"""Mean, standard deviation and confidence interval of paired differences."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

LEVEL = 0.95
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Values of several runs.

    Attributes:
        mean: Their mean.
        std: Their standard deviation (divisor n - 1); None for a single value.
        n: Number of values.
    """

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences.

    Attributes:
        mean: The mean.
        half_width: Half the width of the confidence interval around ``mean``; None for a single pair.
        n: Number of pairs.
    """

    mean: float
    half_width: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the confidence interval; None for a single pair."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation; None without values.

    Example:
        >>> spread([1.0, 2.0, 3.0])
        Spread(mean=2.0, std=1.0, n=3)
    """
    if not values:
        return None
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def paired_difference(a: Mapping[K, float], b: Mapping[K, float], level: float = LEVEL) -> Difference | None:
    """Mean of a - b over the keys that both have, with Student's confidence interval.

    Pairs share a stream, so that the difficulty of a stream cancels. None without a common key.
    """
    both = spread([a[key] - b[key] for key in a if key in b])
    if both is None:
        return None
    half = None if both.std is None else student_t(both.n - 1, level) * both.std / math.sqrt(both.n)
    return Difference(both.mean, half, both.n)


def student_t(df: int, level: float = LEVEL) -> float:
    """Quantile t of Student's distribution such that [-t, t] has probability ``level``.

    Args:
        df: Degrees of freedom, at least 1.
        level: Probability between 0 and 1.

    Example:
        >>> [round(student_t(df), 3) for df in (1, 2, 9)]
        [12.706, 4.303, 2.262]
    """
    from scipy.special import stdtrit  # takes as long to import as the rest of a report

    return float(stdtrit(df, (1 + level) / 2))
