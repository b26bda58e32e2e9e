"""A run on disk: ``batches.csv`` with a row per batch and ``result.json`` made from it. Standard library only."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tta_bench.confusion import Confusion, IouTally, from_text, to_text

SCHEMA = 1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
COLUMNS = (
    "step", "domain", "samples", "wrong", "error", "running_error",
    "forward_samples", "backward_samples", "seconds", "top_class_share", "calibration", "coreset_size",
)  # fmt: skip
CONFUSION = "confusion"  # a further column where pixels are classified
csv.field_size_limit(2**31 - 1)  # one of many classes is longer than csv lets pass
BINS = 15  # of equal width, for the calibration error


@dataclass(frozen=True)
class Row:
    """What happened in one batch.

    Attributes:
        step: Position in the stream.
        by_domain: Per domain of the batch, the number of samples and how many were wrong; where pixels are classified,
            the number of images and the sum of their shares of wrong pixels.
        forward_samples: Images forwarded through the backbone.
        backward_samples: Images whose gradient came back through it.
        seconds: Time of the adaptation, without loading.
        diagnostics: The method's own numbers.
        top_class_share: Share of the class predicted most often; near 1 in a stream of many classes, the method has
            collapsed.
        calibration: Per bin of confidence that is not empty, the number of samples, the sum of their confidences and
            how many were right; where pixels are classified, of pixels.
        confusion: Per domain, as in ``by_domain``, the pixels by class and prediction; None of classified images.
    """

    step: int
    by_domain: Mapping[str, tuple[int, float]]
    forward_samples: int
    backward_samples: int
    seconds: float
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    top_class_share: float = 0.0
    calibration: Mapping[int, tuple[int, float, int]] = field(default_factory=dict)
    confusion: Mapping[str, Confusion] | None = None

    @property
    def samples(self) -> int:
        """Number of samples B."""
        return sum(n for n, _ in self.by_domain.values())

    @property
    def wrong(self) -> float:
        """Number of wrong predictions."""
        return sum(w for _, w in self.by_domain.values())

    @property
    def domain(self) -> str:
        """The domain, or ``fog=3/12;snow=1/4`` (wrong/samples) for a batch of several."""
        if len(self.by_domain) == 1:
            return next(iter(self.by_domain))
        return ";".join(f"{name}={w}/{n}" for name, (n, w) in self.by_domain.items())


class Tally:
    """Counts of a stream so far; errors and IoU are made from integers, never from means of means.

    Args:
        iou: Counts pixels; None where images are classified.
    """

    def __init__(self, iou: IouTally | None = None) -> None:
        self.iou = iou
        self.samples: dict[str, int] = {}
        self.wrong: dict[str, float] = {}
        self.forward_samples = self.backward_samples = 0
        self.seconds: list[float] = []
        self.coreset_size: float | None = None
        self._top_class = 0.0
        self._bins: dict[int, tuple[int, float, int]] = {}

    def add(self, row: Row) -> None:
        """Count one batch."""
        for name, (n, wrong) in row.by_domain.items():
            self.samples[name] = self.samples.get(name, 0) + n
            self.wrong[name] = self.wrong.get(name, 0) + wrong
        if row.confusion is not None:
            self.iou = self.iou or IouTally()
            self.iou.add(row.step, row.confusion)
        self.forward_samples += row.forward_samples
        self.backward_samples += row.backward_samples
        self.seconds.append(row.seconds)
        self.coreset_size = row.diagnostics.get("coreset_size")
        self._top_class += row.samples * row.top_class_share
        for key, (count, confidence, right) in row.calibration.items():
            n, c, r = self._bins.get(key, (0, 0.0, 0))
            self._bins[key] = (n + count, c + confidence, r + right)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error in percent: the mean gap between confidence and accuracy over the bins.

        Source: Guo et al., ICML 2017, Eq. 3, with 15 bins.
        """
        n = sum(count for count, _, _ in self._bins.values())
        return 100 * sum(abs(c - right) for _, c, right in self._bins.values()) / n if n else math.nan

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
            "ece": _none_if_nan(self.calibration_error),
            "top_class_share": _none_if_nan(self._top_class / n),
            "coreset_size": None if self.coreset_size is None else int(self.coreset_size),
            "seconds": sum(self.seconds),
            "seconds_per_batch_median": median(self.seconds) if self.seconds else None,
            **(self.iou.summary() if self.iou else {}),
        }


def logged_numbers(row: Row, tally: Tally) -> dict[str, float]:
    """What loggers get of a batch, on the step axis ``stream/step``; ``tally`` already counts it."""
    errors = tally.domain_error
    return {
        "stream/step": row.step,
        "stream/error": 100 * row.wrong / row.samples,
        "stream/running_error": tally.sample_error,
        "stream/mean_error": tally.mean_error,
        "stream/calibration_error": tally.calibration_error,
        "stream/top_class_share": row.top_class_share,
        **{f"domain/{name}": errors[name] for name in row.by_domain},
        **(tally.iou.logged(row.by_domain) if tally.iou else {}),
        "cost/forward_per_sample": row.forward_samples / row.samples,
        "cost/backward_per_sample": row.backward_samples / row.samples,
        "cost/seconds": row.seconds,
        **{f"method/{key}": value for key, value in row.diagnostics.items()},
    }


def _none_if_nan(x: float) -> float | None:
    return None if math.isnan(x) else x


class WriteError(OSError):
    """The disk does not take what a run writes; the message is one sentence with the remedy."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one sentence what could not be written.

    Raises:
        WriteError: If the disk is full, the folder is read-only and the like.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        remedy = "free some space" if error.errno in FULL else "make it writable or choose another output=..."
        message = f"cannot write {path} ({error.strerror or error}): {remedy}, then run the same command again"
        raise WriteError(message) from error


class RowWriter:
    """Appends rows to ``batches.csv``, each on disk before the next batch starts, or not at all.

    Args:
        path: The file.
        goes_on: Append to an existing file rather than replace it.
    """

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self._path, self._columns = path, read_columns(path) if goes_on else None
        with writing(path):
            self._file = path.open("ab" if goes_on else "wb", buffering=0)

    def write(self, row: Row, tally: Tally) -> None:
        """Write one row; ``tally`` already counts it.

        Raises:
            WriteError: If the disk does not take it; the rows before are as they were.
        """
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
            "top_class_share": row.top_class_share,
            "calibration": ";".join(f"{k}={n}/{c!r}/{right}" for k, (n, c, right) in row.calibration.items()),
            "coreset_size": row.diagnostics.get("coreset_size", ""),
            **({} if row.confusion is None else {CONFUSION: to_text(row.confusion)}),
            **{key: value for key, value in row.diagnostics.items() if key != "coreset_size"},
        }
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=self._columns or list(values))
        if self._columns is None:
            writer.writeheader()
        writer.writerow(values)
        self._append(text.getvalue().encode())
        self._columns = list(writer.fieldnames)

    def _append(self, content: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        with writing(self._path):
            try:
                while content:
                    content = content[self._file.write(content) :]
            except OSError:
                os.ftruncate(self._file.fileno(), size)
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sync(path: Path) -> int:
    """Wait until all of a file is on the disk; its size in bytes."""
    with writing(path), path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def read_columns(path: Path) -> list[str]:
    """The header of ``batches.csv``."""
    with path.open(newline="") as file:
        return next(csv.reader(file))


def read_rows(path: Path, size: int) -> list[Row]:
    """The rows in the first ``size`` bytes of ``batches.csv``; seconds are rounded to microseconds.

    Raises:
        ValueError: If the file is shorter, or those bytes are not rows of steps 0, 1, 2, ...
    """
    content = path.read_bytes()[:size] if path.exists() else b""
    lines = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    try:
        rows = [_row(line) for line in lines]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has a row that cannot be read") from error
    if len(content) < size or [row.step for row in rows] != list(range(len(rows))):
        raise ValueError(f"{path} has lost rows")
    return rows


def _row(line: Mapping[str, str]) -> Row:
    own = {key: float(value) for key, value in line.items() if key not in (*COLUMNS, CONFUSION)}
    size, by_domain = line["coreset_size"], _by_domain(line)
    return Row(
        step=int(line["step"]),
        by_domain=by_domain,
        forward_samples=int(line["forward_samples"]),
        backward_samples=int(line["backward_samples"]),
        seconds=float(line["seconds"]),
        diagnostics={"coreset_size": float(size), **own} if size else own,
        top_class_share=float(line.get("top_class_share") or 0),
        calibration=_calibration(line.get("calibration") or ""),
        confusion=from_text(line[CONFUSION], list(by_domain)) if CONFUSION in line else None,
    )


def _calibration(text: str) -> dict[int, tuple[int, float, int]]:
    """``14=3/2.9/3;7=1/0.5/0``: bin=samples/sum of confidences/right."""
    found = {}
    for part in filter(None, text.split(";")):
        key, _, counts = part.partition("=")
        n, confidence, right = counts.split("/")
        found[int(key)] = (int(n), float(confidence), int(right))
    return found


def _by_domain(line: Mapping[str, str]) -> dict[str, tuple[int, float]]:
    """``fog`` with its own columns, or ``fog=3/12;snow=1/4`` (wrong/samples)."""
    if "=" not in line["domain"]:
        return {line["domain"]: (int(line["samples"]), json.loads(line["wrong"]))}
    found: dict[str, tuple[int, float]] = {}
    for part in line["domain"].split(";"):
        name, _, counts = part.rpartition("=")
        wrong, _, n = counts.partition("/")
        found[name] = (int(n), json.loads(wrong))
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file in one step: a reader sees the old content or the new one, never a half.

    Raises:
        WriteError: If the disk does not take it.
    """
    draft = path.with_suffix(".tmp")
    with writing(path):
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
