"""A schedule says which sample of which domain arrives when. It holds no images and does not need torch."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[Any]
"""A NumPy array of integers of any width."""

SCHEMA = "tta_bench.stream/1"


class Step(NamedTuple):
    """One batch of the stream: two arrays of equal length (B,)."""

    domain_ids: IntArray
    indices: IntArray


class Segment(NamedTuple):
    """A maximal run of samples from one domain: arrivals ``start`` to ``stop - 1`` of the stream."""

    domain: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """The order of arrival of N samples in T steps, as three flat read-only arrays.

    Two schedules are equal if the same samples of the same domains arrive in the same batches; ``kind`` and
    ``params`` record how a schedule was made and are not part of its identity.

    Args:
        kind: Name of the setting, such as ``"cdc"``.
        params: Arguments that the schedule was made with; must be JSON-serialisable.
        domains: Domain names in order of first arrival; the position of a name is its id.
        domain_ids: Domain of each arrival, int16 (N,).
        indices: Row of each arrival in its domain's data, int32 (N,).
        offsets: Step t holds the arrivals ``offsets[t]`` to ``offsets[t + 1] - 1``, int64 (T + 1,).

    Raises:
        ValueError: If the arrays are inconsistent with each other or with the names, or a step is empty.

    Example:
        >>> stream = Schedule("demo", {}, ("fog", "snow"), [0, 0, 0, 1], [2, 0, 1, 0], [0, 2, 3, 4])
        >>> len(stream), stream[0].indices.tolist()
        (3, [2, 0])
        >>> stream.segments()
        [Segment(domain='fog', start=0, stop=3), Segment(domain='snow', start=3, stop=4)]
    """

    kind: str
    params: Mapping[str, Any]
    domains: tuple[str, ...]
    domain_ids: IntArray
    indices: IntArray
    offsets: IntArray

    def __post_init__(self) -> None:
        _check_arrays(self.domains, *map(np.asarray, (self.domain_ids, self.indices, self.offsets)))
        # Little-endian copies: the fingerprint is the same on every machine, and the caller's arrays are not frozen.
        for name, dtype in (("domain_ids", "<i2"), ("indices", "<i4"), ("offsets", "<i8")):
            array = np.array(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "domains", tuple(self.domains))
        object.__setattr__(self, "params", json.loads(json.dumps(dict(self.params), default=_plain)))

    @property
    def num_samples(self) -> int:
        """Arrivals in the whole stream (N)."""
        return len(self.indices)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, step: int) -> Step:
        position = operator.index(step)
        position += len(self) if position < 0 else 0
        if not 0 <= position < len(self):
            raise IndexError(f"step {step} is outside a stream of {len(self)} steps")
        window = slice(self.offsets[position], self.offsets[position + 1])
        return Step(self.domain_ids[window], self.indices[window])

    def __iter__(self) -> Iterator[Step]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        return (
            f"Schedule({self.kind}: {len(self)} steps, {self.num_samples} samples, "
            f"{len(self.domains)} domains, {self.short})"
        )

    def segments(self) -> list[Segment]:
        """The maximal runs of one domain, in order of arrival; positions count samples, not steps."""
        starts = _run_starts(self.domain_ids)
        stops = np.append(starts[1:], self.num_samples)
        names = [self.domains[i] for i in self.domain_ids[starts].tolist()]
        return list(map(Segment, names, starts.tolist(), stops.tolist()))

    def describe(self) -> str:
        """A table of the domains in order of first arrival: samples, visits (segments) and first step."""
        starts = _run_starts(self.domain_ids)
        visits = np.bincount(self.domain_ids[starts])
        samples = np.bincount(self.domain_ids)
        _, first = np.unique(self.domain_ids, return_index=True)
        first_step = np.searchsorted(self.offsets, first, side="right") - 1
        width = max(map(len, (*self.domains, "domain")))
        rows = [
            f"{self.kind}: {len(self)} steps, {self.num_samples} samples, {len(starts)} segments",
            f"fingerprint {self.fingerprint()}",
            "  ".join(f"{name}={value}" for name, value in self.params.items()),
            f"{'domain':<{width}}  samples  visits  first step",
        ]
        for domain, *counts in zip(self.domains, samples, visits, first_step, strict=True):
            rows.append("{:<{width}}  {:>7}  {:>6}  {:>10}".format(domain, *counts, width=width))
        return "\n".join(rows)

    def fingerprint(self) -> str:
        """SHA-256 over domain names and arrays, 64 hex digits."""
        return self._digest

    @property
    def short(self) -> str:
        """The first 12 digits of the fingerprint, for display."""
        return self._digest[:12]

    @cached_property
    def _digest(self) -> str:
        header = [list(self.domains), self.num_samples, len(self)]  # with the lengths, the encoding is unambiguous
        digest = hashlib.sha256(json.dumps(header).encode())
        for array in (self.domain_ids, self.indices, self.offsets):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def save(self, path: Path | str) -> None:
        """Write JSON, one key per line; domains and batch sizes as [value, count] runs."""
        content = {
            "schema": SCHEMA,
            "kind": self.kind,
            "params": self.params,
            "fingerprint": self.fingerprint(),
            "domains": self.domains,
            "domain_runs": _run_lengths(self.domain_ids),
            "batch_runs": _run_lengths(np.diff(self.offsets)),
            "indices": self.indices.tolist(),
        }
        lines = (f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in content.items())
        Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> Schedule:
        """Read a file written by :meth:`save` and verify its fingerprint.

        Raises:
            ValueError: If the file is not a stream file, or its content has changed since it was saved.
        """
        content = _read_stream_file(path)
        try:
            indices = content["indices"]
            ids = _expand(content["domain_runs"], len(indices))
            offsets = np.append(0, np.cumsum(_expand(content["batch_runs"], len(indices))))
            named = (content["kind"], content["params"], tuple(content["domains"]))
            schedule = cls(*named, ids, indices, offsets)
            stored = content["fingerprint"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path} is a damaged stream file: {error!r}") from error
        if schedule.fingerprint() != stored:
            raise ValueError(
                f"{path} is a damaged stream file: its content has fingerprint {schedule.short}, "
                f"but {str(stored)[:12]} was saved"
            )
        return schedule


def repeated(schedule: Schedule, rounds: int) -> Schedule:
    """Repeat a schedule ``rounds`` times: same batches, same order.

    Raises:
        ValueError: If ``rounds`` is below 1.

    Source: the repeating setting of CoTTA (CVPR 2022); ACDC in three rounds in DPCore (ICML 2025).
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    starts = schedule.num_samples * np.arange(rounds)[:, None]
    return Schedule(
        schedule.kind,
        {**schedule.params, "rounds": rounds},
        schedule.domains,
        np.tile(schedule.domain_ids, rounds),
        np.tile(schedule.indices, rounds),
        np.append(0, (starts + schedule.offsets[1:]).ravel()),
    )


def _check_arrays(domains: tuple[str, ...], ids: IntArray, indices: IntArray, offsets: IntArray) -> None:
    if len(set(domains)) < len(domains):
        raise ValueError("a domain name occurs twice")
    if not (ids.ndim == indices.ndim == offsets.ndim == 1 and len(ids) == len(indices) > 0):
        raise ValueError("domain_ids and indices must be one-dimensional, of equal length and not empty")
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(ids):
        raise ValueError("offsets must start at 0 and end at the number of samples")
    if (np.diff(offsets) <= 0).any():
        raise ValueError("a step must hold at least one sample")
    used, first = np.unique(ids, return_index=True)
    if len(domains) > 2**15 or not np.array_equal(used, np.arange(len(domains))) or (np.diff(first) < 0).any():
        raise ValueError("domains must name exactly the domain ids that occur, in order of first arrival")
    if indices.min() < 0 or indices.max() >= 2**31:
        raise ValueError("an index must be a row number from 0 to 2**31 - 1")


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not support: NumPy's scalars and arrays."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"the parameter {value!r} cannot be stored in JSON")


def _run_starts(values: IntArray) -> IntArray:
    return np.append(0, np.flatnonzero(np.diff(values)) + 1)


def _run_lengths(values: IntArray) -> list[list[int]]:
    starts = _run_starts(values)
    counts = np.diff(np.append(starts, len(values)))
    pairs: list[list[int]] = np.stack([values[starts], counts], axis=1).tolist()
    return pairs


def _expand(runs: list[list[int]], most: int) -> IntArray:
    values, counts = np.array(runs, dtype=np.int64).T
    if counts.sum() > most:  # a wrong count must not exhaust the memory
        raise ValueError(f"its runs are longer than its {most} samples")
    return np.repeat(values, counts)


def _read_stream_file(path: Path | str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a stream file, or it is truncated: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a stream file: its key 'schema' should be {SCHEMA!r}")
    return content
