"""A run on disk: ``batches.csv`` with a row per batch and ``result.json`` made from it. Standard library only."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

SCHEMA = 1
COLUMNS = (
    "step", "domain", "samples", "wrong", "error", "running_error",
    "forward_samples", "backward_samples", "seconds", "coreset_size",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What happened in one batch.

    Attributes:
        step: Position in the stream.
        by_domain: Per domain of the batch, the number of samples and how many were wrong.
        forward_samples: Images forwarded through the backbone.
        backward_samples: Images whose gradient came back through it.
        seconds: Time of the adaptation, without loading.
        diagnostics: The method's own numbers.
    """

    step: int
    by_domain: Mapping[str, tuple[int, int]]
    forward_samples: int
    backward_samples: int
    seconds: float
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples B."""
        return sum(n for n, _ in self.by_domain.values())

    @property
    def wrong(self) -> int:
        """Number of wrong predictions."""
        return sum(w for _, w in self.by_domain.values())

    @property
    def domain(self) -> str:
        """The domain, or ``fog=3/12;snow=1/4`` (wrong/samples) for a batch of several."""
        if len(self.by_domain) == 1:
            return next(iter(self.by_domain))
        return ";".join(f"{name}={w}/{n}" for name, (n, w) in self.by_domain.items())


class Tally:
    """Counts of a stream so far; errors are made from integers, never from means of means."""

    def __init__(self) -> None:
        self.samples: dict[str, int] = {}
        self.wrong: dict[str, int] = {}
        self.forward_samples = self.backward_samples = 0
        self.seconds: list[float] = []
        self.coreset_size: float | None = None

    def add(self, row: Row) -> None:
        """Count one batch."""
        for name, (n, wrong) in row.by_domain.items():
            self.samples[name] = self.samples.get(name, 0) + n
            self.wrong[name] = self.wrong.get(name, 0) + wrong
        self.forward_samples += row.forward_samples
        self.backward_samples += row.backward_samples
        self.seconds.append(row.seconds)
        self.coreset_size = row.diagnostics.get("coreset_size")

    @property
    def domain_error(self) -> dict[str, float]:
        """Error of each domain, in percent, in order of first appearance."""
        return {name: 100 * self.wrong[name] / n for name, n in self.samples.items()}

    @property
    def mean_error(self) -> float:
        """Plain mean of the domains' errors, in percent; nan before the first batch."""
        return fmean(self.domain_error.values()) if self.samples else math.nan

    @property
    def sample_error(self) -> float:
        """Error over all samples, in percent; nan before the first batch."""
        n = sum(self.samples.values())
        return 100 * sum(self.wrong.values()) / n if n else math.nan

    def summary(self) -> dict[str, Any]:
        """The part of ``result.json`` that is counted."""
        n = max(1, sum(self.samples.values()))
        return {
            "mean_error": _none_if_nan(self.mean_error),
            "sample_error": _none_if_nan(self.sample_error),
            "domain_error": self.domain_error,
            "num_samples": self.samples,
            "forward_per_sample": self.forward_samples / n,
            "backward_per_sample": self.backward_samples / n,
            "coreset_size": None if self.coreset_size is None else int(self.coreset_size),
            "seconds": sum(self.seconds),
            "seconds_per_batch_median": median(self.seconds) if self.seconds else None,
        }


def _none_if_nan(x: float) -> float | None:
    return None if math.isnan(x) else x


class RowWriter:
    """Appends rows to ``batches.csv``, each on disk before the next batch starts.

    Args:
        path: The file; an existing one is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def write(self, row: Row, tally: Tally) -> None:
        """Write one row; ``tally`` already counts it."""
        values = {
            "step": row.step,
            "domain": row.domain,
            "samples": row.samples,
            "wrong": row.wrong,
            "error": 100 * row.wrong / row.samples,
            "running_error": tally.sample_error,
            "forward_samples": row.forward_samples,
            "backward_samples": row.backward_samples,
            "seconds": f"{row.seconds:.6f}",
            "coreset_size": row.diagnostics.get("coreset_size", ""),
            **{key: value for key, value in row.diagnostics.items() if key != "coreset_size"},
        }
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, fieldnames=list(values))
            self._writer.writeheader()
        self._writer.writerow(values)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file in one step: a reader sees the old content or the new one, never a half."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def read_results(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Read every ``result.json`` in or below the folders, in order of their paths, each once.

    Raises:
        FileNotFoundError: If there is none.
    """
    folders = list(folders)
    paths = {p.resolve() for folder in folders for p in [*folder.glob("result.json"), *folder.rglob("result.json")]}
    if not paths:
        raise FileNotFoundError(f"there is no result.json in or below {', '.join(map(str, folders))}")
    return [{**json.loads(path.read_text()), "folder": str(path.parent)} for path in sorted(paths)]
