"""Checks that the files of a run agree: its numbers with its rows, its rows with its stream, files with checksums.

They need no data, no weights and no torch, and are fast enough for every report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import CHECKSUMS, SCHEMA, checksums, empty_tally, sha256_of, whole_rows
from tta_bench.results.visits import visit_summary
from tta_bench.streams import Schedule

TOLERANCE = 1e-9
MICROSECOND = 1e-6  # ``batches.csv`` rounds seconds to microseconds
EXPECTED = (
    "schema", "status", "method", "setting", "dataset", "model", "seed", "domains", "stream_sha256", "weights_sha256",
    "code_sha256", "preprocess", "data", "config", "versions", "prediction_timing", "needs_source",
)  # fmt: skip
"""Keys that every ``result.json`` has."""


def read_batches(folder: Path) -> tuple[list[BatchRow], list[str]]:
    """The rows of a run; if they cannot be read, none and a sentence that says why."""
    try:
        return whole_rows(folder / "batches.csv"), []
    except (OSError, ValueError) as error:
        return [], [str(error).replace(str(folder / "batches.csv"), "batches.csv")]


def check_run(
    result: Mapping[str, Any],
    batches: tuple[Sequence[BatchRow], list[str]] | None = None,
    tally: Tally | None = None,
) -> dict[str, list[str]]:
    """Compare the files of a run folder with each other.

    Args:
        result: Content of ``result.json`` with the key ``folder``, as returned by ``read_results``.
        batches: The result of :func:`read_batches`, if already read.
        tally: The counts of these batches, if already counted.

    Returns:
        One sentence per disagreement, by check: ``schema``, ``batches``, ``checksums``, ``stream`` and ``numbers``.
        Only finished runs have all of these; a run that has not ended has no checksums yet.
    """
    folder = Path(result["folder"])
    found = {"schema": list(_schema(result))}
    if found["schema"]:
        return found
    rows, found["batches"] = read_batches(folder) if batches is None else batches
    if result["status"] == "running":
        return found
    found["checksums"] = list(_checksums(result, folder))
    if result["status"] == "done":
        schedule, found["stream"] = _stream(result, folder / "stream.json")
        found["batches"] = found["batches"] or list(_batches(rows, schedule))
        found["numbers"] = list(_numbers(result, rows, tally)) if rows else []
    return found


def _schema(result: Mapping[str, Any]) -> Iterator[str]:
    if result.get("schema") != SCHEMA:
        yield f"result.json has schema {result.get('schema')}, but this version reads {SCHEMA}: repeat the run"
    elif missing := [key for key in EXPECTED if key not in result]:
        yield f"result.json lacks {', '.join(missing)}: it is damaged, repeat the run"


def _checksums(result: Mapping[str, Any], folder: Path) -> Iterator[str]:
    stored = result.get(CHECKSUMS)
    if not isinstance(stored, dict):
        yield "result.json has no checksums: it was changed, or written by an earlier version"
        return
    for name, digest in checksums(result, folder).items():
        if digest is None and name not in stored and result["status"] != "done":
            continue  # it ended before there was a batch
        if digest is None:
            yield f"{name} is missing"
        elif digest != stored.get(name):
            yield f"{name} was changed after the run"


def _stream(result: Mapping[str, Any], path: Path) -> tuple[Schedule | None, list[str]]:
    try:
        schedule = _load(path, sha256_of(path))
    except FileNotFoundError:
        return None, ["stream.json is missing"]
    except (OSError, ValueError) as error:
        return None, [str(error).replace(str(path), path.name)]
    own, told = schedule.fingerprint(), str(result["stream_sha256"])
    if own != told:
        return schedule, [f"stream.json has fingerprint {own[:12]}, but result.json says {told[:12]}"]
    return schedule, []


@lru_cache(maxsize=4)
def _load(path: Path, digest: str) -> Schedule:
    """Read a stream; the runs of a bench have equal files, so each digest is read only once."""
    return Schedule.load(path)


def _batches(rows: Sequence[BatchRow], schedule: Schedule | None) -> Iterator[str]:
    """Check that the rows have the domains of the stream, with the same numbers of samples."""
    if not rows:
        yield "batches.csv is missing or empty"
    elif schedule is not None:
        expected = _samples(schedule)
        if len(rows) != len(expected):
            yield f"batches.csv has {len(rows)} batches, but stream.json has {len(expected)}"
        held = [{name: n for name, (n, _) in row.by_domain.items()} for row in rows]
        wrong = [t for t, (own, planned) in enumerate(zip(held, expected, strict=False)) if own != planned]
        if wrong:
            first = wrong[0]
            yield (
                f"{len(wrong)} batches do not have the samples of stream.json, first batch {first}: "
                f"{held[first]} instead of {expected[first]}"
            )


@lru_cache(maxsize=4)
def _samples(schedule: Schedule) -> list[dict[str, int]]:
    """Number of samples of each domain in each batch."""
    d = len(schedule.domains)
    batch = np.repeat(np.arange(len(schedule)), np.diff(schedule.offsets))
    cells, counts = np.unique(batch * d + schedule.domain_ids, return_counts=True)
    found: list[dict[str, int]] = [{} for _ in range(len(schedule))]
    for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
        found[cell // d][schedule.domains[cell % d]] = count
    return found


def _numbers(result: Mapping[str, Any], rows: Sequence[BatchRow], tally: Tally | None) -> Iterator[str]:
    if tally is None:
        tally = empty_tally(result, len(rows))
        for row in rows:
            tally.add(row)
    for key, value in {**tally.summary(), **visit_summary(rows)}.items():
        rounded = {"seconds": MICROSECOND * len(rows), "seconds_per_batch_median": MICROSECOND}
        yield from _differences(key, result.get(key), value, rounded.get(key, 0.0))


def _differences(name: str, told: Any, counted: Any, rounded: float) -> Iterator[str]:
    if isinstance(counted, Mapping) and isinstance(told, Mapping):
        for key in {**counted, **told}:
            yield from _differences(f"{name}.{key}", told.get(key), counted.get(key), rounded)
    elif isinstance(counted, list) and isinstance(told, list) and len(counted) == len(told):
        for k, (one, other) in enumerate(zip(told, counted, strict=True)):
            yield from _differences(f"{name}.{k}", one, other, rounded)
    elif not _same(told, counted, rounded):
        yield f"{name} is {_short(told)}, but the batches give {_short(counted)}"


def _same(told: Any, counted: Any, rounded: float) -> bool:
    numbers = (int, float)
    if isinstance(told, numbers) and isinstance(counted, numbers):
        return isclose(told, counted, rel_tol=TOLERANCE, abs_tol=max(TOLERANCE, rounded))
    return bool(told == counted)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
