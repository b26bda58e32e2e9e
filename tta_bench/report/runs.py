"""A run as seen by reports: its ``result.json``, and its batches, which are read on demand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tta_bench.results.checks import check_run
from tta_bench.results.confusion import IouTally
from tta_bench.results.rows import BatchRow
from tta_bench.results.run_folder import FILES, whole_rows
from tta_bench.results.visits import Visit, recovery, visits_of

Result = dict[str, Any]

MAX_POINTS = 300
"""Maximum number of points of a curve; in longer streams, several batches share a point."""


class StreamId(NamedTuple):
    """Identifies a stream of a protocol by its seed, and by its order of domains if one is named."""

    seed: int
    order: str

    def __str__(self) -> str:
        return f"seed {self.seed}" + (f", order {self.order}" if self.order else "")


@dataclass(frozen=True)
class Trace:
    """The batches of a run, reduced to the displayed data.

    Attributes:
        steps: Number of batches.
        batch_sizes: Sizes of the smallest and of the largest batch; (0, 0) without batches.
        curves: By name, at most ``MAX_POINTS`` points (batch, value).
        visits: The visits of the stream to its domains.
        recovery: Mean number of batches until the running error settles after a change; None without such segments.
        final_top_class: Fraction of the most frequently predicted class of a batch, averaged over the last tenth of
            the batches; None without batches.
    """

    steps: int
    batch_sizes: tuple[int, int]
    curves: dict[str, list[tuple[float, float]]]
    visits: tuple[Visit, ...]
    recovery: float | None
    final_top_class: float | None

    @classmethod
    def of(cls, rows: list[BatchRow]) -> Trace:
        """Reduce the rows of a run."""
        visits = visits_of(rows)
        end = [row.top_class_share for row in rows[-max(1, len(rows) // 10) :]]
        sizes = [row.samples for row in rows] or [0]
        ends = (min(sizes), max(sizes))
        return cls(len(rows), ends, _curves(rows), visits, recovery(visits, rows), fmean(end) if end else None)


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run; runs are compared by identity.

    Args:
        result: Content of its ``result.json``, with the key ``folder`` if it was read from a folder.
    """

    result: Result

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.result["method"])

    @property
    def setting(self) -> str:
        """Name of the setting."""
        return str(self.result["setting"])

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.result["dataset"])

    @property
    def seed(self) -> int:
        """Seed of the stream and of the method."""
        return int(self.result["seed"])

    @property
    def error(self) -> str | None:
        """Reason of its failure; None if it did not fail."""
        return self.result.get("error")

    @property
    def mean_error(self) -> float | None:
        """Mean error over the domains, in percent; None if the run is not done, or for segmentation."""
        return self.number("mean_error") if self.done else None

    @property
    def domain_error(self) -> dict[str, float | None]:
        """Error of each domain in percent, None without labels; empty if the run is not done, or for segmentation."""
        return dict(self.result.get("domain_error") or {}) if self.done else {}

    @property
    def mean_iou(self) -> float | None:
        """Mean IoU over the domains, in percent; None if the run is not done, or for classification."""
        return self.number("mean_iou") if self.done else None

    @property
    def domain_iou(self) -> dict[str, float | None]:
        """Mean IoU of each domain, in percent; empty if the run is not done, or for classification."""
        return dict(self.result.get("domain_iou") or {}) if self.done else {}

    @property
    def done(self) -> bool:
        """Whether it reached the end of the stream."""
        return bool(self.result["status"] == "done")

    @property
    def stream(self) -> StreamId:
        """The stream of the protocol that it saw."""
        order = self.result["config"]["setting"].get("order")
        return StreamId(int(self.result["seed"]), "" if order is None else str(order))

    @property
    def folder(self) -> Path | None:
        """Its folder on disk."""
        return Path(self.result["folder"]) if "folder" in self.result else None

    @property
    def files(self) -> list[str]:
        """Names of the files in its folder."""
        return [name for name in FILES if self.folder is not None and (self.folder / name).is_file()]

    def number(self, key: str) -> float | None:
        """Read a number of ``result.json``; None if it is missing, null or not finite."""
        value = self.result.get(key)
        if not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
            return None
        return float(value)

    @property
    def trace(self) -> Trace:
        """Its batches; empty if ``batches.csv`` is missing or cannot be read."""
        return self._read[0]

    @property
    def disagreements(self) -> list[str]:
        """Inconsistencies between its files, see :func:`tta_bench.results.checks.check_run`."""
        return self._read[1]

    @property
    def disagreement(self) -> str:
        """The inconsistencies in one sentence with the remedy; empty if there are none."""
        first, more = self.disagreements[:3], len(self.disagreements) - 3
        told = "; ".join(first) + (f"; and {more} more" if more > 0 else "")
        return f"{told}. For details, run tta-bench verify {self.folder}" if told else ""

    @cached_property
    def _read(self) -> tuple[Trace, list[str]]:
        """Read the rows without keeping them: there may be many runs of many batches."""
        if self.folder is None:
            return Trace.of([]), []
        rows = whole_rows(self.folder / "batches.csv")
        return Trace.of(rows), [told for found in check_run(self.result, rows).values() for told in found]

    @property
    def pauses(self) -> list[int]:
        """Batches of the stream that follow a gap in time; see :func:`tta_bench.streams.as_given`."""
        return list(self.result.get("pauses", ()))

    @cached_property
    def planned_steps(self) -> int | None:
        """Number of batches of its stream; None without a readable ``stream.json``."""
        try:
            content = json.loads((self.folder / "stream.json").read_text(encoding="utf-8")) if self.folder else {}
            return sum(int(count) for _, count in content["batch_runs"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _curves(rows: list[BatchRow]) -> dict[str, list[tuple[float, float]]]:
    names = [name for name in (rows[0].diagnostics if rows else ()) if name == "coreset_size" or _is_distance(name)]
    every = -(-len(rows) // MAX_POINTS)
    blocks = [rows[i : i + every] for i in range(0, len(rows), every or 1)]
    found: dict[str, list[tuple[float, float]]] = {"running_error": _running_error(blocks)}
    if rows and rows[0].confusion is not None:
        found["running_iou"] = _running_iou(blocks)
    for name in names:
        points = []
        for block in blocks:
            values = [v for row in block if (v := row.diagnostics.get(name)) is not None and v == v]
            if values:  # a size is read at the end of a block, a distance is averaged over it
                value = values[-1] if name == "coreset_size" else sum(values) / len(values)
                points.append((block[-1].step + 1.0, value))
        found[name] = points
    return {name: points for name, points in found.items() if points}


def _is_distance(name: str) -> bool:
    return name.startswith("distance")


def _running_error(blocks: list[list[BatchRow]]) -> list[tuple[float, float]]:
    samples, wrong = 0, 0.0
    points = []
    for block in blocks:
        samples += sum(sum(row.known.values()) for row in block)
        wrong += sum(row.wrong for row in block)
        if samples:
            points.append((block[-1].step + 1.0, 100 * wrong / samples))
    return points


def _running_iou(blocks: list[list[BatchRow]]) -> list[tuple[float, float]]:
    tally, points = IouTally(), []
    for block in blocks:
        for row in block:
            tally.add(row.step, row.confusion or {})
        if (iou := tally.pooled) is not None:
            points.append((block[-1].step + 1.0, iou))
    return points
