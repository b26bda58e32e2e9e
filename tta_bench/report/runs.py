"""A run as seen by reports: its ``result.json``, and its batches, which are read on demand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tta_bench.datasets.files.table import read_table
from tta_bench.report.trace import Reduced, Trace, reduced
from tta_bench.results.run_folder import FILES

Result = dict[str, Any]


class StreamId(NamedTuple):
    """Identifies a stream of a protocol by its seed, and by its order of domains if one is named."""

    seed: int
    order: str

    def __str__(self) -> str:
        return f"seed {self.seed}" + (f", order {self.order}" if self.order else "")


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
        """Its batches; empty if ``batches.csv`` is missing or cannot be read, see ``disagreements``."""
        return self._read.trace

    @property
    def disagreements(self) -> list[str]:
        """Inconsistencies between its files, see :func:`tta_bench.results.checks.check_run`."""
        return self._read.disagreements

    @property
    def disagreement(self) -> str:
        """The inconsistencies in one sentence with the remedy; empty if there are none."""
        first, more = self.disagreements[:3], len(self.disagreements) - 3
        told = "; ".join(first) + (f"; and {more} more" if more > 0 else "")
        return f"{told}. For details, run tta-bench verify {self.folder}" if told else ""

    @cached_property
    def _read(self) -> Reduced:
        return reduced(self.result)

    @property
    def confusion(self) -> dict[tuple[int, int], int]:
        """Pixels, or samples with a label, by true and predicted class.

        It is empty if the run is classification and did not save its predictions.

        Raises:
            ValueError: If its predictions cannot be read.
        """
        if self.folder is None or self.trace.confusion:
            return self.trace.confusion
        tables = (self.folder / f"predictions.{suffix}" for suffix in ("csv", "parquet"))
        table = next((path for path in tables if path.is_file()), None)
        if table is None:
            return {}
        columns = read_table(table, "predicted", ["label"]).columns
        pairs = Counter(zip(columns["label"], columns["predicted"], strict=True))
        return {(int(label), int(str(predicted))): n for (label, predicted), n in pairs.items() if label is not None}

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
