"""Visits of a stream to its domains: the error of each visit, and how soon a method settles after a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tta_bench.results.rows import BatchRow

SETTLED = 2.0
"""A running error has settled once it stays within this many percentage points of its last value."""
SHORTEST = 5
"""Minimum number of batches of a segment for its recovery to count."""
MOST_VISITS = 10
"""Maximum number of visits to a domain that are reported separately."""


@dataclass(frozen=True)
class Visit:
    """A maximal sequence of consecutive batches that contain a domain.

    Attributes:
        domain: The domain.
        number: 1 for the first visit to this domain.
        start: First batch.
        stop: The batch after the last.
        samples: Number of samples of this domain.
        wrong: Number of wrong predictions; for segmentation, the sum of the images' fractions of wrong pixels.
        alone: Whether its batches contain no other domain.
        labelled: Number of samples with a label.
    """

    domain: str
    number: int
    start: int
    stop: int
    samples: int
    wrong: float
    alone: bool
    labelled: int

    @property
    def error(self) -> float | None:
        """Error over the labelled samples, in percent; None if there are none."""
        return 100 * self.wrong / self.labelled if self.labelled else None


def visits_of(rows: Sequence[BatchRow]) -> tuple[Visit, ...]:
    """Find the visits in a stream, in order of their starts.

    Example:
        >>> batches = [{"fog": (4, 3)}, {"fog": (4, 1), "snow": (2, 0)}, {"snow": (4, 2)}, {"fog": (2, 1)}]
        >>> rows = [BatchRow(t, domains, 0, 0, 0.0) for t, domains in enumerate(batches)]
        >>> [(v.domain, v.number, v.start, v.stop, v.error) for v in visits_of(rows)]
        [('fog', 1, 0, 2, 50.0), ('snow', 1, 1, 3, 33.333333333333336), ('fog', 2, 3, 4, 50.0)]
    """
    current: dict[str, list[Any]] = {}
    closed: list[Visit] = []
    numbers: dict[str, int] = {}
    for t, row in enumerate(rows):
        held, known = row.by_domain, row.known
        if current.keys() - held.keys():
            closed += [Visit(*current.pop(name)) for name in list(current) if name not in held]
        for name, (n, wrong) in held.items():
            alone = len(held) == 1
            if (now := current.get(name)) is None:
                numbers[name] = numbers.get(name, 0) + 1
                current[name] = [name, numbers[name], t, t + 1, n, wrong, alone, known[name]]
            else:  # in the order of the fields of Visit
                now[3:] = [t + 1, now[4] + n, now[5] + wrong, now[6] and alone, now[7] + known[name]]
    return tuple(sorted([*closed, *(Visit(*now) for now in current.values())], key=lambda v: (v.start, v.domain)))


def revisit_change(visits: Sequence[Visit]) -> float | None:
    """Error of a domain's last visit minus that of its first, in points, averaged over the domains that recur.

    Negative if a method improves on domains that it has seen before; None if no domain recurs.
    """
    first = {v.domain: v for v in reversed(visits)}
    last = {v.domain: v for v in visits}
    ends = [(first[d].error, last[d].error) for d in first if last[d].number > 1]
    changes = [after - before for before, after in ends if before is not None and after is not None]
    return fmean(changes) if changes else None


def visit_summary(rows: Sequence[BatchRow]) -> dict[str, Any]:
    """Entries of ``result.json`` that depend on the order of the batches.

    Args:
        rows: The batches of the run.

    Returns:
        ``visit_error``: for each domain that recurs, the error in percent of each of its first ``MOST_VISITS``
        visits; ``revisit_change`` and ``recovery_batches``: see :func:`revisit_change` and :func:`recovery`.
    """
    visits = visits_of(rows)
    errors: dict[str, list[float | None]] = {}
    for visit in visits:
        errors.setdefault(visit.domain, []).append(visit.error)
    return {
        "visit_error": {domain: found[:MOST_VISITS] for domain, found in errors.items() if len(found) > 1},
        "revisit_change": revisit_change(visits),
        "recovery_batches": recovery(visits, rows),
    }


def settling_time(errors: Sequence[float]) -> int:
    """Number of batches after which a running error stays within ``SETTLED`` points of its last value.

    Args:
        errors: The running error of a segment after each of its batches, in percent; not empty.

    Example:
        >>> settling_time([80.0, 61.0, 63.0, 60.5, 60.0])
        4
        >>> settling_time([60.0, 60.0])
        1
    """
    outside = [k for k, error in enumerate(errors) if abs(error - errors[-1]) > SETTLED]
    return outside[-1] + 2 if outside else 1


def recovery(visits: Sequence[Visit], rows: Sequence[BatchRow]) -> float | None:
    """Batches until the running error of a segment settles, averaged over the segments that follow a change.

    A segment is a visit whose batches contain no other domain. Its running error after k batches is the error over its
    first k batches (see :func:`settling_time`). The first segment of the stream does not follow a change, and segments
    with fewer than ``SHORTEST`` batches are skipped. Errors over few samples fluctuate, so even a method that never
    adapts has a recovery above 1: compare with Source.

    Args:
        visits: The visits in the stream.
        rows: Its batches.
    """
    times = []
    for visit in visits:
        if not visit.alone or visit.start == 0 or visit.stop - visit.start < SHORTEST:
            continue
        samples, wrong = 0, 0.0
        errors = []
        for row in rows[visit.start : visit.stop]:
            samples, wrong = samples + row.num_known, wrong + row.wrong
            errors += [100 * wrong / samples] if samples else []
        if len(errors) == visit.stop - visit.start:  # otherwise it begins without a label
            times.append(settling_time(errors))
    return fmean(times) if times else None
