"""The batches of a run, reduced to what reports show, and kept beside the run so that they are read only once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tta_bench.files import WriteError, writing
from tta_bench.results import checks, confusion, rows, run_folder, visits
from tta_bench.results.checks import check_run, read_batches
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import checksums, empty_tally
from tta_bench.results.visits import Visit, recovery, visits_of
from tta_bench.streams import schedule

KEPT = ".trace.json"
READERS = (checks, confusion, rows, run_folder, visits, schedule)
"""The modules whose code, besides that of this one, determines what a report reads from a run folder."""
MAX_POINTS = 300
"""Maximum number of points of a curve; in longer streams, several batches share a point."""


@dataclass(frozen=True)
class Trace:
    """The batches of a run, reduced to the displayed data.

    Attributes:
        steps: Number of batches.
        batch_sizes: Sizes of the smallest and of the largest batch; (0, 0) without batches.
        curves: By name, at most ``MAX_POINTS`` points (batch, value).
        error_parts: The contributions of consecutive parts of the stream, at most ``MAX_POINTS``, to the mean error,
            which is their sum; empty for segmentation and without labels.
        visits: The visits of the stream to its domains.
        recovery: Mean number of batches until the running error settles after a change; None without such segments.
        final_top_class: Fraction of the most frequently predicted class of a batch, averaged over the last tenth of
            the batches; None without batches.
        calibration: Per confidence bin, the number of samples, the sum of their confidences, and of correct ones.
        confusion: Pixels of all domains by class and prediction; empty for classification.
    """

    steps: int
    batch_sizes: tuple[int, int]
    curves: dict[str, list[tuple[float, float]]]
    error_parts: list[float]
    visits: tuple[Visit, ...]
    recovery: float | None
    final_top_class: float | None
    calibration: dict[int, tuple[int, float, int]]
    confusion: dict[tuple[int, int], int]

    @classmethod
    def of(cls, batches: Sequence[BatchRow], tally: Tally) -> Trace:
        """Reduce the rows of a run, and count them in an empty tally."""
        curves: dict[str, list[tuple[float, float]]] = {}
        every = -(-len(batches) // MAX_POINTS) or 1
        blocks = [batches[start : start + every] for start in range(0, len(batches), every)]
        for block in blocks:
            for row in block:
                tally.add(row)
            for name, value in _points(block, tally):
                curves.setdefault(name, []).append((block[-1].step + 1.0, value))
        visits, sizes = visits_of(batches), [row.samples for row in batches] or [0]
        end = [row.top_class_share for row in batches[-max(1, len(batches) // 10) :]]
        return cls(
            len(batches), (min(sizes), max(sizes)), curves, _error_parts(blocks, tally), visits,
            recovery(visits, batches), fmean(end) if end else None, tally.bins,
            tally.iou.confusion if tally.iou else {},
        )  # fmt: skip


def _error_parts(blocks: Sequence[Sequence[BatchRow]], tally: Tally) -> list[float]:
    """Wrong predictions of each block, weighted such that they sum to the mean over the domains of their errors."""
    labelled = {name: n for name, n in tally.labelled.items() if n}
    if tally.iou is not None or not labelled:
        return []
    weights = {name: 100 / (n * len(labelled)) for name, n in labelled.items()}
    return [
        sum(weights.get(name, 0.0) * wrong for row in block for name, (_, wrong) in row.by_domain.items())
        for block in blocks
    ]


def _points(block: Sequence[BatchRow], tally: Tally) -> Iterator[tuple[str, float]]:
    """The value of each curve at the end of a block of batches, where it is known."""
    if not math.isnan(tally.sample_error):
        yield "running_error", tally.sample_error
    if tally.iou is not None and (iou := tally.iou.pooled) is not None:
        yield "running_iou", iou
    for name in block[-1].diagnostics:
        values = [v for row in block if (v := row.diagnostics.get(name, math.nan)) == v]
        if values and name == "coreset_size":  # read at the end of a block
            yield name, values[-1]
        elif values and name.startswith("distance"):
            yield name, sum(values) / len(values)


class Reduced(NamedTuple):
    """What a report needs of a run beside its ``result.json``."""

    trace: Trace
    disagreements: list[str]


def reduced(result: Mapping[str, Any]) -> Reduced:
    """Read the batches of a run, and compare its files with each other.

    What was read is kept in the run folder in ``.trace.json``, with the checksums of the files and of the code that
    reads them. It is read again once one of these changes, or while the run goes on.

    Args:
        result: Content of ``result.json``; without the key ``folder`` there are no batches.
    """
    if "folder" not in result:
        return Reduced(Trace.of([], Tally()), [])
    folder = Path(result["folder"])
    key = {**checksums(result, folder), "code": _code()} if result["status"] != "running" else None
    if key is not None and (kept := _kept(folder / KEPT, key)) is not None:
        return kept
    batches, unread = read_batches(folder)
    tally = empty_tally(result, len(batches))
    trace = Trace.of(batches, tally)
    told = check_run(result, (batches, unread), tally)
    found = Reduced(trace, [sentence for sentences in told.values() for sentence in sentences])
    if key is not None:
        _keep(folder / KEPT, key, found)
    return found


@cache
def _code() -> str:
    places = [__file__, *(str(module.__file__) for module in READERS)]
    return hashlib.sha256(b"".join(Path(place).read_bytes() for place in places)).hexdigest()


def _keep(path: Path, key: Mapping[str, Any], found: Reduced) -> None:
    rows_of_visits = [list(vars(visit).values()) for visit in found.trace.visits]
    pixels = [[*pair, n] for pair, n in found.trace.confusion.items()]
    trace = {**vars(found.trace), "visits": rows_of_visits, "confusion": pixels}
    draft = path.with_suffix(".tmp")
    with contextlib.suppress(WriteError), writing(path):  # a run folder may be read-only
        draft.write_text(json.dumps({"key": key, "trace": trace, "disagreements": found.disagreements}), "utf-8")
        draft.replace(path)


def _kept(path: Path, key: Mapping[str, Any]) -> Reduced | None:
    """What was kept under a key; None if nothing was, or under another."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["key"] != key:
            return None
        trace = content["trace"]
        trace["batch_sizes"] = tuple(trace["batch_sizes"])
        trace["curves"] = {name: [(x, y) for x, y in points] for name, points in trace["curves"].items()}
        trace["visits"] = tuple(Visit(*visit) for visit in trace["visits"])
        trace["calibration"] = {int(number): tuple(counts) for number, counts in trace["calibration"].items()}
        trace["confusion"] = {(label, predicted): n for label, predicted, n in trace["confusion"]}
        return Reduced(Trace(**trace), content["disagreements"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
