"""The order that a data set has by itself, such as that of the rows of a table; nothing is shuffled or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tta_bench.streams.assemble import checked, from_samples, positive_number, whole_number
from tta_bench.streams.schedule import IntArray, Schedule


class Arrivals(NamedTuple):
    """The order of N images that a data set has, such as that of the rows of a table.

    Attributes:
        domain_ids: Position of each image's domain in ``sizes``, (N,).
        indices: Row of each image in its domain, (N,).
        times: When each was taken, in seconds, nan where unknown, (N,); None if no time is known.
    """

    domain_ids: IntArray
    indices: IntArray
    times: npt.NDArray[np.float64] | None = None


def as_given(
    sizes: Mapping[str, int],
    *,
    batch_size: int = 64,
    seed: int = 0,
    arrivals: Arrivals | None = None,
    by_time: bool = False,
    gap_hours: float | None = 6.0,
) -> Schedule:
    """The data set's own order, never shuffled: that of a table of images, otherwise domain after domain.

    Batches are cut regardless of domains, as a camera would fill them.

    Args:
        sizes: Samples per domain.
        batch_size: Samples per batch (B).
        seed: Changes nothing: there is nothing to draw.
        arrivals: The order; None shows the domains one after another, each in its natural order.
        by_time: Sort by time first; images of equal times keep their order.
        gap_hours: A pause between two images longer than this is a boundary in the report: the batch with the first
            image after it is in ``params["boundaries"]``, and neither methods nor batches see it. None notes none.

    Raises:
        ValueError: If an argument is out of range, or ``by_time`` lacks the time of an image.

    Example:
        >>> order = Arrivals(np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([0.0, 60.0, 90_000.0]))
        >>> stream = as_given({"day": 2, "night": 1}, batch_size=2, arrivals=order)
        >>> [step.indices.tolist() for step in stream], stream.params["boundaries"]
        ([[0, 0], [1]], [1])
    """
    sizes, batch_size = checked(sizes, batch_size)
    gap = None if gap_hours is None else positive_number("gap_hours", gap_hours)
    whole_number("seed", seed, least=0)
    if arrivals is None:
        rows = np.concatenate([np.arange(n) for n in sizes.values()])
        arrivals = Arrivals(np.repeat(np.arange(len(sizes)), list(sizes.values())), rows)
    ids, rows, times = arrivals
    if by_time:
        if times is None or np.isnan(times).any():
            raise ValueError("by_time needs the time of every image: give it in the column time, or use by_time=false")
        order = np.argsort(times, kind="stable")
        ids, rows, times = ids[order], rows[order], times[order]
    boundaries: list[int] = []
    if times is not None and gap is not None:
        far = np.abs(np.diff(times)) > 3600 * gap  # comparisons with nan are false
        boundaries = np.unique((np.flatnonzero(far) + 1) // batch_size).tolist()
    params = {
        "batch_size": batch_size,
        "seed": seed,
        "by_time": by_time,
        "gap_hours": gap_hours,
        "boundaries": boundaries,
    }
    return from_samples("as_given", params, list(sizes), ids, rows, batch_size)
