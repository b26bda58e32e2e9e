"""Shared by all corruptions: array types, an adapter for random integers, and conversion to and from uint8."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Image: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Rng: TypeAlias = np.random.Generator | np.random.RandomState


def integers(rng: Rng, low: int, high: int, size: tuple[int, ...] | None = None) -> npt.NDArray[np.intp]:
    """Draw uniform integers from ``[low, high)``, which the two kinds of generator name differently.

    Args:
        rng: A ``Generator``, or a legacy ``RandomState`` for the published stream of numbers.
        low: Smallest value.
        high: One above the largest value.
        size: Shape of the draw; None draws a scalar (a 0-d array).
    """
    draw = rng.integers if isinstance(rng, np.random.Generator) else rng.randint
    return np.asarray(draw(low, high, size=size), dtype=np.intp)


def unit(image: Image) -> npt.NDArray[np.float64]:
    """Scale grey levels to ``[0, 1]`` in double precision, as the published code does."""
    return image / 255.0


def to_uint8(image: Floats) -> Image:
    """Clip to ``[0, 1]`` and convert to uint8, truncating instead of rounding, as the published data sets do."""
    levels = np.clip(image, 0, 1)
    levels *= 255
    return levels.astype(np.uint8)
