"""Which method to use, in words that name the evidence; they say so when there is not enough of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from tta_bench.report.groups import Entry, Group, group_runs
from tta_bench.report.measures import has_collapsed, mean_measure
from tta_bench.report.runs import Result, RunRecord
from tta_bench.results.proportion import Z

LEAST_LABELS = 30
"""Labelled images below which an error says nothing."""
LEAST_AGREEMENT = 50.0
"""Percent of images on which a method must agree with the source model to be recommended without labels."""
CLEARLY = 1.0
"""Points of an estimate that are taken for a difference."""


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
    """The recommendation of one group; None if there is nothing to compare."""
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
        return _by_error(group, baseline, sound) + also
    return _by_estimates(baseline, sound, _labelled(baseline)) + also


def _names(entries: Sequence[Entry]) -> str:
    return ", ".join(entry.label for entry in entries)


def _labelled(entry: Entry) -> int:
    """Labelled images over all streams."""
    return sum(sum(_counts(run).values()) for run in entry.counted.values())


def _counts(run: RunRecord) -> dict[str, int]:
    """Labelled images of each domain."""
    return dict(run.result.get("num_labelled") or run.result.get("num_samples") or {})


def _by_error(group: Group, baseline: Entry, sound: Sequence[Entry]) -> str:
    measure = mean_measure(group)
    sign = 1 if measure.higher else -1

    def score(entry: Entry) -> float:
        found = entry.spread(measure.value)
        return sign * found.mean if found else float("-inf")

    best, name = max(sound, key=score), "mean IoU" if measure.higher else "error"
    own, base = (entry.spread(measure.value) for entry in (best, baseline))
    if own is None or base is None:
        return f"Recommendation: none, {name}s are not known."
    gain = sign * (own.mean - base.mean)
    evidence = f"a mean {name} of {own.mean:.1f} %, against {base.mean:.1f} % of {baseline.label}"
    half, over = _uncertainty(group, best, baseline)
    if half is None:
        return (
            f"Recommendation: undecided. {best.label} has {evidence}, on one stream; more seeds would tell whether "
            "that is chance."
        )
    told = f"{evidence} (gain {gain:+z.1f}, 95 % interval {gain - half:+z.1f} to {gain + half:+z.1f}, {over})"
    if gain > half:
        return f"Recommendation: {best.label}, with {told}."
    return (
        f"Recommendation: keep {baseline.label}; whether another method is better cannot be told. "
        f"The best other, {best.label}, has {told}."
    )


def _uncertainty(group: Group, best: Entry, baseline: Entry) -> tuple[float | None, str]:
    """Half the width of the gain's interval, and what it is over: paired streams, else images of one stream."""
    gain = group.gain(best)
    if gain is not None and gain.half_width is not None:
        return gain.half_width, f"{gain.n} streams"
    if group.segments:
        return None, ""
    variance = 0.0
    for entry in (best, baseline):  # unpaired, so wider than need be: images on which both agree cancel
        run = next(iter(entry.counted.values()))
        counts = _counts(run)
        known = {name: error / 100 for name, error in run.result["domain_error"].items() if error is not None}
        # One success and one failure are added, so that few images without an error are not taken for certainty.
        rates = {name: (p * counts[name] + 1) / (counts[name] + 2) for name, p in known.items()}
        variance += sum(p * (1 - p) / counts[name] for name, p in rates.items()) / len(known) ** 2
    return 100 * Z * sqrt(variance), f"{_labelled(baseline)} labelled images"


def _by_estimates(baseline: Entry, sound: Sequence[Entry], labelled: int) -> str:
    few = f"only {labelled} images have a label" if labelled else "no image has a label"
    advice = "Labels for about 100 random images of the stream would tell."

    def figure(entry: Entry, key: str) -> float | None:
        found = entry.spread(lambda run: (run.result.get("label_free") or {}).get(key))
        return found.mean if found else None

    keys = {"atc_accuracy": "ATC", "nuclear_norm": "nuclear norm"}
    base = {key: value for key in keys if (value := figure(baseline, key)) is not None}
    if not base:
        return f"Recommendation: none; {few}, and nothing else was measured (label_free=always). {advice}"
    gains = {entry: [value - base[key] for key in base if (value := figure(entry, key)) is not None] for entry in sound}
    # Both estimates must rise: entropy minimisation raises confidence by itself, dispersity falls when it collapses.
    good = [
        entry for entry in sound
        if len(gains[entry]) == len(base) == len(keys) and min(gains[entry]) >= CLEARLY
        and (figure(entry, "source_agreement") or 0) >= LEAST_AGREEMENT
    ]  # fmt: skip
    if not good:
        return (
            f"Recommendation: keep {baseline.label}; {few}, and no method is above it by {CLEARLY:g} point in both "
            f"label-free estimates ({' and '.join(keys.values())}). {advice}"
        )
    best = max(good, key=lambda entry: min(gains[entry]))
    shown = ", ".join(f"{keys[key]} {figure(best, key):.1f} (source {base[key]:.1f})" for key in base)
    return (
        f"Recommendation: perhaps {best.label}; {few}, but both label-free estimates are higher: {shown}, and it "
        f"agrees with the source model on {figure(best, 'source_agreement'):.0f} % of the images. Methods that "
        f"minimise entropy raise such estimates by themselves. {advice}"
    )
