"""A run on disk: ``batches.csv`` with one row per batch, ``result.json`` computed from it, and checksums of all files.

Standard library only.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tta_bench.files import write_json, writing
from tta_bench.results.confusion import IouTally, from_text, to_text
from tta_bench.results.rows import BatchRow, Tally

SCHEMA = 1
COLUMNS = (
    "step", "domain", "samples", "wrong", "error", "running_error",
    "forward_samples", "backward_samples", "seconds", "top_class_share", "calibration", "coreset_size",
)  # fmt: skip
FILES = ("result.json", "batches.csv", "config.yaml", "stream.json")
CHECKSUMS = "checksums"  # key of result.json
CONFUSION = "confusion"  # additional column for segmentation
LABEL_FREE = "label_free/"  # prefix of the additional columns of figures that need no labels
LABELLED = "labelled"  # additional column if some images have no label: the numbers of those that do, by domain
csv.field_size_limit(2**31 - 1)  # with many classes, the confusion column exceeds the default limit


class RowWriter:
    """Appends rows to ``batches.csv``; each row is completely on disk before the next batch starts, or not at all.

    Args:
        path: The file.
        goes_on: Append to an existing file instead of replacing it.
    """

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self.path, self._columns = path, read_columns(path) if goes_on else None
        with writing(path):
            self._file = path.open("ab" if goes_on else "wb", buffering=0)

    def write(self, row: BatchRow, tally: Tally) -> None:
        """Write one row; ``tally`` already includes it.

        Raises:
            WriteError: If the row cannot be written; earlier rows are not affected.
        """
        values = {
            "step": row.step,
            "domain": row.domain,
            "samples": row.samples,
            "wrong": row.wrong,
            "error": 100 * row.wrong / known if (known := row.num_known) else "",
            "running_error": "" if math.isnan(tally.sample_error) else tally.sample_error,
            "forward_samples": row.forward_samples,
            "backward_samples": row.backward_samples,
            "seconds": f"{row.seconds:.6f}",
            "top_class_share": row.top_class_share,
            "calibration": ";".join(f"{k}={n}/{c!r}/{right}" for k, (n, c, right) in row.calibration.items()),
            "coreset_size": row.diagnostics.get("coreset_size", ""),
            **({} if row.labelled is None else {LABELLED: ";".join(map(str, row.labelled.values()))}),
            **({} if row.confusion is None else {CONFUSION: to_text(row.confusion)}),
            **{key: value for key, value in row.diagnostics.items() if key != "coreset_size"},
            **{f"{LABEL_FREE}{key}": value for key, value in (row.label_free or {}).items()},
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
        with writing(self.path):
            try:
                while content:
                    content = content[self._file.write(content) :]
            except OSError:
                os.ftruncate(self._file.fileno(), size)
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_columns(path: Path) -> list[str]:
    """The header of ``batches.csv``."""
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def read_rows(path: Path, size: int) -> list[BatchRow]:
    """Read the rows in the first ``size`` bytes of ``batches.csv``; seconds are rounded to microseconds.

    Raises:
        ValueError: If the file is shorter, or these bytes are not rows of steps 0, 1, 2, ...
    """
    content = path.read_bytes()[:size] if path.exists() else b""
    lines = csv.reader(io.StringIO(content.decode(), newline=""))
    columns, rows = next(lines, []), []
    own = [key for key in columns if key not in (*COLUMNS, CONFUSION, LABELLED) and not key.startswith(LABEL_FREE)]
    free = [key for key in columns if key.startswith(LABEL_FREE)]
    for cells in lines:
        try:
            rows.append(_row(dict(zip(columns, cells, strict=True)), own, free))
        except KeyError as error:
            raise ValueError(f"{path} cannot be read: it has no column {error}") from error
        except ValueError as error:
            raise ValueError(f"{path} has a row that cannot be read, line {lines.line_num}: {error}") from error
    if len(content) < size or [row.step for row in rows] != list(range(len(rows))):
        raise ValueError(f"{path} is missing rows")
    return rows


def _row(line: Mapping[str, str], own: Iterable[str], free: Iterable[str]) -> BatchRow:
    """Parse a row; ``own`` and ``free`` are the columns of the method's diagnostics and of label-free figures."""
    diagnostics, size, by_domain = {key: float(line[key]) for key in own}, line["coreset_size"], _by_domain(line)
    return BatchRow(
        step=int(line["step"]),
        by_domain=by_domain,
        forward_samples=int(line["forward_samples"]),
        backward_samples=int(line["backward_samples"]),
        seconds=float(line["seconds"]),
        diagnostics={"coreset_size": float(size), **diagnostics} if size else diagnostics,
        top_class_share=float(line.get("top_class_share") or 0),
        calibration=_calibration(line.get("calibration") or ""),
        labelled=dict(zip(by_domain, map(int, line[LABELLED].split(";")), strict=True)) if LABELLED in line else None,
        label_free={key.removeprefix(LABEL_FREE): float(line[key]) for key in free} or None,
        confusion=from_text(line[CONFUSION], list(by_domain)) if CONFUSION in line else None,
    )


def _calibration(text: str) -> dict[int, tuple[int, float, int]]:
    """Parse ``14=3/2.9/3;7=1/0.5/0``: bin=samples/sum of confidences/correct."""
    if not text:
        return {}
    cells = text.replace("=", "/").replace(";", "/").split("/")  # most of a row: parsed as four columns
    counts = zip(map(int, cells[1::4]), map(float, cells[2::4]), map(int, cells[3::4]), strict=True)
    return dict(zip(map(int, cells[0::4]), counts, strict=True))


def _by_domain(line: Mapping[str, str]) -> dict[str, tuple[int, float]]:
    """Parse ``fog``, whose counts are in other columns, or ``fog=3/12;snow=1/4`` (wrong/samples)."""
    if "=" not in line["domain"]:
        return {line["domain"]: (int(line["samples"]), _number(line["wrong"]))}
    found: dict[str, tuple[int, float]] = {}
    for part in line["domain"].split(";"):
        name, _, counts = part.rpartition("=")
        wrong, _, n = counts.partition("/")
        found[name] = (int(n), _number(wrong))
    return found


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def whole_rows(path: Path) -> list[BatchRow]:
    """Read the complete rows; if a run is writing or was killed, the last row may be incomplete.

    Raises:
        ValueError: If a complete row cannot be read.
    """
    return read_rows(path, path.read_bytes().rfind(b"\n") + 1) if path.is_file() else []


def empty_tally(result: Mapping[str, Any], steps: int) -> Tally:
    """Create an empty tally of the kind that the run itself used.

    Args:
        result: Content of its ``result.json``.
        steps: Batches of the whole stream; each round has its own IoU.
    """
    if "mean_iou" not in result:
        return Tally()
    rounds = result["config"]["setting"].get("rounds", 1)
    return Tally(IouTally(tuple(result.get("class_iou", ())), steps // max(1, rounds)))


def write_result(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``result.json``, with the checksums of all files once the run has ended.

    Returns:
        The content as written.

    Raises:
        WriteError: If the file cannot be written.
    """
    content = {key: value for key, value in result.items() if key not in ("folder", CHECKSUMS)}
    if content["status"] != "running":
        content[CHECKSUMS] = {name: digest for name, digest in checksums(content, folder).items() if digest}
    write_json(folder / "result.json", content)
    return content


def read_result(folder: Path) -> dict[str, Any] | None:
    """The content of ``result.json``; None if it is missing or damaged."""
    try:
        return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def checksums(result: Mapping[str, Any], folder: Path) -> dict[str, str | None]:
    """SHA-256 of each file of a run, None if missing; that of ``result.json`` excludes the checksums themselves.

    A checksum detects changes by hand or by accident. It is not a signature: anyone can compute a new one.
    """
    rest = json.loads(json.dumps({key: value for key, value in result.items() if key not in ("folder", CHECKSUMS)}))
    own = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    others = {name: folder / name for name in FILES if name != "result.json"}
    return {"result.json": own, **{name: sha256_of(p) if p.is_file() else None for name, p in others.items()}}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_results(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Read every ``result.json`` in or below the folders once, sorted by path.

    Raises:
        FileNotFoundError: If there are none.
    """
    folders = list(folders)
    paths = {p.resolve() for folder in folders for p in [*folder.glob("result.json"), *folder.rglob("result.json")]}
    if not paths:
        raise FileNotFoundError(f"there is no result.json in or below {', '.join(map(str, folders))}")
    return [{**json.loads(path.read_text(encoding="utf-8")), "folder": str(path.parent)} for path in sorted(paths)]
