"""Grouping of runs: which may be compared, which are averaged, and which are the baseline of gains.

There are three levels: a *group* contains the runs of one protocol (data, setting, weights, ...), and an *entry* of a
group contains the runs of one method with the same hyper-parameters, which differ only in the seed or the named order
of their stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from tta_bench.report.intervals import Difference, Spread, paired_difference, spread
from tta_bench.report.runs import RunRecord, StreamId
from tta_bench.results.identity import NOT_IDENTITY

Value = Callable[[RunRecord], float | None]
Key = dict[str, Any]
T = TypeVar("T")

SOURCE = "source"
UNFINISHED = ("failed", "interrupted", "running")
"""Statuses of runs without final numbers."""
NOT_OF_THE_METHOD = {
    *("method", "seed", "setting", "dataset", "model", "trainer"),  # distinguished elsewhere
    *NOT_IDENTITY,
    "forgetting",  # measured after the stream
    *("label_free", "save_predictions", "save_adapted"),  # measured and written beside the method
}
"""Configuration keys that may differ within an entry; others, such as a reset policy, become part of its label."""


@dataclass(frozen=True, eq=False)
class Entry:
    """The runs of one method with the same hyper-parameters in one group; entries are compared by identity.

    Attributes:
        label: The method, with the hyper-parameters in which it differs from other entries of the method.
        runs: All its runs.
        counted: The finished run of each stream; if there are several, the one that finished last.
    """

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @cached_property
    def counted(self) -> dict[StreamId, RunRecord]:
        """The finished run of each stream, in order; see the class."""
        done = sorted((run for run in self.runs if run.done), key=lambda run: str(run.result.get("finished")))
        latest = {run.stream: run for run in done}
        return {stream: latest[stream] for stream in sorted(latest)}

    def values(self, value: Value) -> dict[StreamId, float]:
        """A number of each counted run, if it has it."""
        return {stream: x for stream, run in self.counted.items() if (x := value(run)) is not None}

    def spread(self, value: Value) -> Spread | None:
        """Mean and standard deviation over the streams."""
        return spread(list(self.values(value).values()))

    @property
    def is_sound(self) -> bool:
        """Whether it has counted runs whose files are all consistent."""
        return bool(self.counted) and not any(run.disagreements for run in self.counted.values())

    @property
    def notes(self) -> list[str]:
        """Notes on oracle knowledge, and on the number of runs without final numbers, and why."""
        status = Counter(str(run.result["status"]) for run in self.runs)
        found = ["oracle"] if self.runs[0].result.get("oracle") else []
        found += [f"{status[name]} {name}" for name in UNFINISHED if status[name]]
        if repeated := status["done"] - len(self.counted):
            found.append(f"{repeated} repeated, not counted")
        if odd := sum(bool(run.disagreements) for run in self.runs):
            found.append(f"{odd} with inconsistent files")
        return found


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one protocol.

    Attributes:
        protocol: Everything that its runs have in common, by dotted name.
        differs: The part of ``protocol`` that distinguishes it from other groups of the same data set, setting and
            model.
        entries: Its entries, in order of first appearance.
        baseline: Name of the baseline.
    """

    protocol: Key
    differs: Key
    entries: tuple[Entry, ...]
    baseline: str

    @property
    def runs(self) -> list[RunRecord]:
        """All its runs."""
        return [run for entry in self.entries for run in entry.runs]

    @property
    def disagreements(self) -> list[str]:
        """One sentence per run with inconsistent files; its numbers are shown nevertheless."""
        odd = [(entry, run) for entry in self.entries for run in entry.runs if run.disagreements]
        return [f"{entry.label}, {run.stream}: {run.disagreement}" for entry, run in odd]

    @property
    def notices(self) -> list[str]:
        """What its runs said of an input that may be misread, each sentence once."""
        return list(dict.fromkeys(str(told) for run in self.runs for told in run.result.get("notices", ())))

    @property
    def name(self) -> str:
        """Data set, setting and model."""
        return " · ".join(map(str, self.protocol[""]))

    @cached_property
    def segments(self) -> bool:
        """Whether its runs are segmentation, which is compared by mean IoU (higher is better)."""
        return any("mean_iou" in run.result for run in self.runs)

    @property
    def note(self) -> str:
        """How it differs from other groups of the same name; empty if there are none."""
        return " ".join(f"{key}={value}" for key, value in self.differs.items())

    @property
    def baseline_first(self) -> list[Entry]:
        """Its entries in the order of papers, with the baseline first."""
        return sorted(self.entries, key=lambda entry: entry is not self.baseline_entry)

    @cached_property
    def streams(self) -> list[StreamId]:
        """All streams that its runs saw."""
        return sorted({run.stream for run in self.runs})

    @cached_property
    def domains(self) -> list[str]:
        """The domains of its finished runs in the data set's order, independent of the order in the stream."""
        met = {d: None for e in self.entries for run in e.counted.values() for d in run.result["domain_error"]}
        own = [str(name) for name in self.protocol.get("domains", [])]
        return sorted(met, key=lambda d: (own.index(d) if d in own else len(own), d))

    @cached_property
    def ranked_streams(self) -> frozenset[StreamId]:
        """The set of streams that most entries have finished; ties are broken by the number of streams."""
        sets = Counter(frozenset(entry.counted) for entry in self.entries if entry.counted)
        return max(sets, key=lambda streams: (sets[streams], len(streams)), default=frozenset())

    def is_ranked(self, entry: Entry) -> bool:
        """Whether its means are over the same streams as those of most entries, and its files are consistent.

        Other entries are shown, but never marked as best.
        """
        return frozenset(entry.counted) == self.ranked_streams and entry.is_sound

    def ranks(self, value: Value, *, digits: int, higher: bool = False) -> dict[Entry, int]:
        """Rank the best (1) and the second best (2) means in competition ranking; other entries have no rank.

        A rank is one more than the number of better means, so that no entry is second after a tie for first. Means
        that are printed alike are tied. If all are tied, no entry is best; if there are only two, none is second.

        Args:
            value: Value to average.
            digits: Number of decimals that are printed.
            higher: Whether higher is better.
        """
        found = {e: s.mean for e in self.entries if self.is_ranked(e) and (s := e.spread(value)) is not None}
        costs = {e: round(-mean if higher else mean, digits) for e, mean in found.items()}
        if len(set(costs.values())) < 2:
            return {}
        ranks = {e: 1 + sum(other < cost for other in costs.values()) for e, cost in costs.items()}
        return {e: rank for e, rank in ranks.items() if rank == 1 or rank == 2 < len(ranks)}

    def gain(self, entry: Entry) -> Difference | None:
        """Improvement of its mean over the baseline, in points, paired by stream; None if unknown.

        A lower error and a higher mean IoU are improvements. If there are no runs of Source itself, its mean as stored
        in the other runs is used.
        """
        key = "mean_iou" if self.segments else "mean_error"
        own = entry.values(lambda run: run.number(key))
        if entry is self.baseline_entry:
            return Difference(0.0, None, len(own)) if own else None
        base: dict[StreamId, float] = {}
        if self.baseline == SOURCE:
            base = entry.values(lambda run: run.number(f"source_{key}"))
        if self.baseline_entry is not None:
            base |= self.baseline_entry.values(lambda run: run.number(key))
        return paired_difference(own, base) if self.segments else paired_difference(base, own)

    @cached_property
    def baseline_entry(self) -> Entry | None:
        """The entry whose label is the baseline, or else the only entry of that method.

        Raises:
            ValueError: If there are several entries of that method.
        """
        named = [e for e in self.entries if e.label == self.baseline]
        named = named or [e for e in self.entries if e.method == self.baseline]
        if len(named) > 1:
            raise ValueError(
                f"baseline {self.baseline} is ambiguous: choose one of {', '.join(e.label for e in named)}"
            )
        return named[0] if named else None

    def in_words(self) -> str:
        """The streams of the finished runs, as in ``seeds 0, 1, orders cotta_0, cotta_1``."""
        streams = sorted({stream for entry in self.entries for stream in entry.counted}) or self.streams
        seeds = sorted({stream.seed for stream in streams})
        orders = list(dict.fromkeys(stream.order for stream in streams if stream.order))
        text = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        return text + (f" · order{'s' * (len(orders) > 1)} {', '.join(orders)}" if orders else "")


def group_runs(runs: Iterable[RunRecord], baseline: str = SOURCE) -> list[Group]:
    """Group runs that may be compared, in order of first appearance.

    Two runs are in one group if they agree in data set, domains, preprocessing, model, weights, precision and setting,
    with all its parameters except the order of domains, and if runs of the same seed and order saw the same stream.

    Args:
        runs: Any runs.
        baseline: Label of an entry, or a method with one entry in a group.

    Raises:
        ValueError: If the baseline is in no group (Source is always available), or is ambiguous.
    """
    by_protocol = [part for same in _split(runs, protocol_key) for part in _split_streams(same)]
    keys = [{**protocol_key(part[0]), **extra} for part, extra in by_protocol]
    found = [
        Group(key, _differing(key, keys), tuple(_entries(part)), baseline)
        for key, (part, _) in zip(keys, by_protocol, strict=True)
    ]
    if baseline != SOURCE and all(group.baseline_entry is None for group in found):
        names = dict.fromkeys(entry.label for group in found for entry in group.entries)
        raise ValueError(f"there is no baseline {baseline}: choose one of {', '.join(names)}")
    return found


def protocol_key(run: RunRecord) -> Key:
    """Everything in which runs must agree to be compared; under "" the part that every table shows."""
    result = run.result
    config = result["config"]
    return {
        "": [result[key] for key in ("dataset", "setting", "model")],
        **{f"setting.{k}": v for k, v in config["setting"].items() if k != "order"},
        **{f"dataset.{k}": v for k, v in result["data"].items()},
        **{key: result[key] for key in ("domains", "weights_sha256", "preprocess")},
        "trainer.precision": config["trainer"]["precision"],
        "trainer.matmul": config["trainer"].get("matmul"),
        "model.compile": config["model"].get("compile"),
    }


def entry_key(run: RunRecord) -> Key:
    """Everything in which runs must agree to be averaged; under "" the method's name."""
    config = run.result["config"]
    return {"": run.method, **config["method"], **{k: v for k, v in config.items() if k not in NOT_OF_THE_METHOD}}


def _entries(runs: Sequence[RunRecord]) -> list[Entry]:
    parts = _split(runs, entry_key)
    keys = [entry_key(part[0]) for part in parts]
    notes = [" ".join(f"{k}={v}" for k, v in _differing(key, keys).items()) for key in keys]
    return [Entry(f"{part[0].method} {note}".strip(), tuple(part)) for part, note in zip(parts, notes, strict=True)]


def _split(items: Iterable[T], key: Callable[[T], Hashable | Key]) -> list[list[T]]:
    parts: dict[str, list[T]] = {}
    for item in items:
        parts.setdefault(repr(key(item)), []).append(item)
    return list(parts.values())


def _split_streams(runs: Sequence[RunRecord]) -> list[tuple[list[RunRecord], Key]]:
    """Separate runs whose stream differs from that of most runs of the same seed and order."""
    votes: dict[StreamId, Counter[str]] = {}
    for run in runs:
        votes.setdefault(run.stream, Counter())[_fingerprint(run)] += 1
    common = {stream: counts.most_common(1)[0][0] for stream, counts in votes.items()}
    parts = _split(runs, lambda run: _fingerprint(run) if _fingerprint(run) != common[run.stream] else "")
    if len(parts) == 1:
        return [(parts[0], {})]
    return [(part, {"stream": ", ".join(dict.fromkeys(_fingerprint(run)[:12] for run in part))}) for part in parts]


def _fingerprint(run: RunRecord) -> str:
    return str(run.result.get("stream_sha256", ""))


def _differing(own: Key, keys: Iterable[Mapping[str, Any]]) -> Key:
    """The part of ``own`` in which another key of the same name differs."""
    others = [key for key in keys if key[""] == own[""]]
    return {k: v for k, v in own.items() if any(other.get(k) != v for other in others)}
