"""Which method to use, in words that name the evidence; they say so when there is not enough of it."""

from __future__ import annotations

from collections.abc import Sequence

from tta_bench.report.groups import Entry, Group, group_runs
from tta_bench.report.intervals import LEVEL, Difference, paired_difference
from tta_bench.report.measures import has_collapsed, mean_measure
from tta_bench.report.runs import Result, RunRecord

LEAST_LABELS = 30
"""Labelled images below which an error says nothing."""
MOST_NAMED = 3
"""Methods that are named in a sentence about several."""


def recommendations(results: Sequence[Result]) -> list[str]:
    """A sentence or two for each group of comparable runs with the baseline and another method.

    Args:
        results: Contents of ``result.json`` files.
    """
    groups = group_runs(map(RunRecord, results))
    told = [(group, recommendation(group)) for group in groups]
    several = sum(text is not None for _, text in told) > 1
    return [
        (f"{group.name} {group.note}: ".replace(" : ", ": ") if several else "") + text for group, text in told if text
    ]


def recommendation(group: Group) -> str | None:
    """The recommendation of one group; None if there is nothing to compare.

    A method is recommended if the confidence interval of its gain over the baseline is above zero. The intervals hold
    for all methods together (Bonferroni): the best of many methods looks better than it is.
    """
    baseline = group.baseline_entry
    others = [entry for entry in group.entries if entry is not baseline and entry.counted]
    if baseline is None or not baseline.counted or not others:
        return None
    collapsed = [entry for entry in others if has_collapsed(group, entry)]
    sound = [entry for entry in others if entry not in collapsed and group.is_ranked(entry)]
    also = f" {_names(collapsed)} predicted one class for most images." if collapsed else ""
    if not sound:
        return f"Recommendation: keep {baseline.label}.{also}"
    if _labelled(baseline) >= LEAST_LABELS:
        return _by_error(group, baseline, sound, 1 - (1 - LEVEL) / len(others)) + also
    return _without_labels(baseline, sound) + also


def _names(entries: Sequence[Entry]) -> str:
    more = len(entries) - MOST_NAMED
    names = [entry.label for entry in entries[:MOST_NAMED]] + ([f"{more} more"] if more > 0 else [])
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _labelled(entry: Entry) -> int:
    """Labelled images over all streams."""
    results = [run.result for run in entry.counted.values()]
    return sum(sum((r.get("num_labelled") or r.get("num_samples") or {}).values()) for r in results)


def _by_error(group: Group, baseline: Entry, sound: Sequence[Entry], level: float) -> str:
    measure = mean_measure(group)
    name = "mean IoU" if measure.higher else "error"
    gains = {entry: gain for entry in sound if (gain := _gain(group, entry, baseline, level)) is not None}
    if not gains:
        return f"Recommendation: none, {name}s are not known."
    better = [entry for entry, gain in gains.items() if gain.interval is not None and gain.interval[0] > 0]
    best = max(better or gains, key=lambda entry: gains[entry].mean)
    gain = gains[best]
    own, base = (entry.spread(measure.value) for entry in (best, baseline))
    assert own is not None
    assert base is not None
    evidence = f"a mean {name} of {own.mean:.1f} %, against {base.mean:.1f} % of {baseline.label}"
    if gain.interval is None:
        return (
            f"Recommendation: undecided. {best.label} has {evidence}, on one stream; more seeds would tell whether "
            "that is chance."
        )
    low, high = gain.interval
    together = f" for all {len(gains)} methods together" if len(gains) > 1 else ""
    found = f"gain {gain.mean:+z.1f}, {100 * LEVEL:g} % interval {low:+z.1f} to {high:+z.1f}{together}"
    told = f"{evidence} ({found}; {_over(baseline)})"
    if not better:
        return (
            f"Recommendation: keep {baseline.label}; whether another method is better cannot be told. "
            f"The best other, {best.label}, has {told}."
        )
    rivals = [entry for entry in gains if entry is not best and not _is_better(_gain(group, best, entry, level))]
    tied = f" Whether it is better than {_names(rivals)} cannot be told." if rivals else ""
    return f"Recommendation: {best.label}, with {told}.{tied}"


def _is_better(gain: Difference | None) -> bool:
    return gain is not None and gain.interval is not None and gain.interval[0] > 0


def _over(entry: Entry) -> str:
    streams, labelled = len(entry.counted), _labelled(entry)
    return f"{streams} streams" if streams > 1 else f"{labelled} labelled images of one stream"


def _gain(group: Group, entry: Entry, other: Entry, level: float) -> Difference | None:
    """The gain over another entry in points, paired by stream; on a single stream, by its parts."""
    measure = mean_measure(group)
    own, theirs = entry.values(measure.value), other.values(measure.value)
    if len(own) == len(theirs) == 1 and (parts := _parts(entry, other)) is not None:
        return paired_difference(parts[1], parts[0], level)
    return paired_difference(own, theirs, level) if measure.higher else paired_difference(theirs, own, level)


def _parts(entry: Entry, other: Entry) -> tuple[dict[int, float], dict[int, float]] | None:
    """The parts of the mean errors of two entries on one stream, scaled so that their means are the errors.

    To each part belong the same images. Two images that only one of the entries predicts correctly are added, one for
    each: without them, few differences that have one sign would be taken for certainty.

    Source: the added images are those of Bonett & Price, J. Educ. Behav. Stat. 2012, for paired proportions.
    """
    own, theirs = (next(iter(each.counted.values())).trace.error_parts for each in (entry, other))
    if not own or len(own) != len(theirs):
        return None
    image = 100 / max(1, _labelled(entry))
    own, theirs = [*own, image, 0.0], [*theirs, 0.0, image]
    return {k: len(own) * x for k, x in enumerate(own)}, {k: len(own) * x for k, x in enumerate(theirs)}


def _without_labels(baseline: Entry, sound: Sequence[Entry]) -> str:
    labelled = _labelled(baseline)
    few = f"only {labelled} images have a label" if labelled else "no image has a label"
    agreements = {entry: entry.spread(_agreement) for entry in sound}
    known = {entry: 100 - found.mean for entry, found in agreements.items() if found is not None}
    if not known:
        return f"Recommendation: none; {few}, and nothing else was measured (label_free=always)."
    order = sorted(known, key=lambda entry: -known[entry])[:MOST_NAMED]
    differ = ", ".join(f"{entry.label} on {known[entry]:.1f} %" for entry in order)
    return (
        f"Recommendation: none; {few}, and estimates without labels do not tell which of two methods is better. "
        f"Most different from {baseline.label}: {differ} of the images; by no more can the error change. Labels of "
        "these images would tell (save_predictions=csv lists them)."
    )


def _agreement(run: RunRecord) -> float | None:
    return (run.result.get("label_free") or {}).get("source_agreement")
