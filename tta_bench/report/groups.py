"""Which runs may be compared, which are averaged, and against what a gain is measured.

Three levels: a *group* holds runs of one protocol (data, setting, weights, ...), an *entry* of a group the runs of one
method with the same hyper-parameters, which differ in their stream only: its seed or its named order.
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
"""States of runs that give no numbers."""
NOT_OF_THE_METHOD = {
    *("method", "seed", "setting", "dataset", "model", "trainer"),  # told apart otherwise
    *NOT_IDENTITY,
    "forgetting",  # measured when the stream has ended
}
"""Keys of a configuration that may differ within an entry; of any other, such as a policy of resets, it says so."""


@dataclass(frozen=True, eq=False)
class Entry:
    """The runs of one method with the same hyper-parameters in one group; entries are compared by identity.

    Attributes:
        label: The method, and what tells its hyper-parameters from those of its other entries.
        runs: All its runs.
        counted: The finished run of each stream. Of several of the same stream, the one that finished last.
    """

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @cached_property
    def counted(self) -> dict[StreamId, RunRecord]:
        """By stream, in order; see the class."""
        done = sorted((run for run in self.runs if run.done), key=lambda run: str(run.result.get("finished")))
        latest = {run.stream: run for run in done}
        return {stream: latest[stream] for stream in sorted(latest)}

    def values(self, value: Value) -> dict[StreamId, float]:
        """A number of each counted run that has it."""
        return {stream: x for stream, run in self.counted.items() if (x := value(run)) is not None}

    def spread(self, value: Value) -> Spread | None:
        """Mean and standard deviation over the streams."""
        return spread(list(self.values(value).values()))

    @property
    def is_sound(self) -> bool:
        """Whether it has counted runs, and the files of every one of them agree."""
        return bool(self.counted) and not any(run.disagreements for run in self.counted.values())

    @property
    def notes(self) -> list[str]:
        """Whether it knows what no method can know, how many of its runs give no numbers, and why."""
        status = Counter(str(run.result["status"]) for run in self.runs)
        found = ["oracle"] if self.runs[0].result.get("oracle") else []
        found += [f"{status[name]} {name}" for name in UNFINISHED if status[name]]
        if repeated := status["done"] - len(self.counted):
            found.append(f"{repeated} repeated, not counted")
        if odd := sum(bool(run.disagreements) for run in self.runs):
            found.append(f"{odd} with files that do not agree")
        return found


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one protocol.

    Attributes:
        protocol: All in which its runs agree, by dotted name.
        differs: The part of ``protocol`` that tells it from other groups of the same data set, setting and model.
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
        """A sentence for each run whose files do not agree; its numbers are shown nevertheless."""
        odd = [(entry, run) for entry in self.entries for run in entry.runs if run.disagreements]
        return [f"{entry.label}, {run.stream}: {run.disagreement}" for entry, run in odd]

    @property
    def name(self) -> str:
        """Data set, setting and model."""
        return " · ".join(map(str, self.protocol[""]))

    @cached_property
    def segments(self) -> bool:
        """Whether its runs classify pixels; they are compared by their mean IoU then, which is better when higher."""
        return any("mean_iou" in run.result for run in self.runs)

    @property
    def note(self) -> str:
        """What tells it from other groups of the same name; empty where nothing needs to."""
        return " ".join(f"{key}={value}" for key, value in self.differs.items())

    @property
    def baseline_first(self) -> list[Entry]:
        """Its entries as papers list them, the baseline on top."""
        return sorted(self.entries, key=lambda entry: entry is not self.baseline_entry)

    @cached_property
    def streams(self) -> list[StreamId]:
        """All streams that its runs saw."""
        return sorted({run.stream for run in self.runs})

    @cached_property
    def domains(self) -> list[str]:
        """The domains that its finished runs met, in the data set's own order, whatever the stream showed first."""
        met = {d: None for e in self.entries for run in e.counted.values() for d in run.result["domain_error"]}
        own = [str(name) for name in self.protocol.get("domains", [])]
        return sorted(met, key=lambda d: (own.index(d) if d in own else len(own), d))

    @cached_property
    def ranked_streams(self) -> frozenset[StreamId]:
        """The streams that most entries have finished (of equally many, the most streams)."""
        sets = Counter(frozenset(entry.counted) for entry in self.entries if entry.counted)
        return max(sets, key=lambda streams: (sets[streams], len(streams)), default=frozenset())

    def is_ranked(self, entry: Entry) -> bool:
        """Whether its means are over the same streams as most others' and its files agree.

        Other entries are shown, but never called best.
        """
        return frozenset(entry.counted) == self.ranked_streams and entry.is_sound

    def ranks(self, value: Value, *, digits: int, higher: bool = False) -> dict[Entry, int]:
        """The best (1) and the second best (2) means in competition ranking; the others have no rank.

        A rank is one more than the number of better means, so that after two that share the first place nobody is
        second. Means that are printed alike are equal. Where all are equal nobody is best, and of two nobody is second.

        Args:
            value: What is averaged.
            digits: Decimals that are printed.
            higher: Whether higher is better, rather than lower.
        """
        found = {e: s.mean for e in self.entries if self.is_ranked(e) and (s := e.spread(value)) is not None}
        costs = {e: round(-mean if higher else mean, digits) for e, mean in found.items()}
        if len(set(costs.values())) < 2:
            return {}
        ranks = {e: 1 + sum(other < cost for other in costs.values()) for e, cost in costs.items()}
        return {e: rank for e, rank in ranks.items() if rank == 1 or rank == 2 < len(ranks)}

    def gain(self, entry: Entry) -> Difference | None:
        """How much better than the baseline's its mean is, in points, paired by stream; None if unknown.

        An error is better when lower, a mean IoU when higher. Where Source itself is not among the runs, its mean that
        the runs remember stands in for it.
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
        """The entry of that label, or the only one of that method.

        Raises:
            ValueError: If several entries are of that method.
        """
        named = [e for e in self.entries if e.label == self.baseline]
        named = named or [e for e in self.entries if e.method == self.baseline]
        if len(named) > 1:
            raise ValueError(
                f"baseline {self.baseline} stands for several: choose one of {', '.join(e.label for e in named)}"
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
    """Runs in groups that may be compared, in order of first appearance.

    Two runs share a group if they agree in data set, domains, preprocessing, model, weights, precision and setting with
    all its parameters but the order of domains, and if runs of the same seed and order saw the same stream.

    Args:
        runs: Any runs.
        baseline: Label of an entry, or a method of which there is one entry in a group.

    Raises:
        ValueError: If no group has the baseline (Source is known without), or it is ambiguous.
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
    """All in which runs must agree to be compared, and under "" what every table shows of it."""
    result = run.result
    config = result["config"]
    return {
        "": [result[key] for key in ("dataset", "setting", "model")],
        **{f"setting.{k}": v for k, v in config["setting"].items() if k != "order"},
        **{f"dataset.{k}": v for k, v in result["data"].items()},
        **{key: result[key] for key in ("domains", "weights_sha256", "preprocess")},
        "trainer.precision": config["trainer"]["precision"],
    }


def entry_key(run: RunRecord) -> Key:
    """All in which runs must agree to be averaged, and under "" the method's name."""
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
    """Set apart the runs whose stream is not the one that most runs of their seed and order saw."""
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
    """What of ``own`` another key of the same name does not share."""
    others = [key for key in keys if key[""] == own[""]]
    return {k: v for k, v in own.items() if any(other.get(k) != v for other in others)}
