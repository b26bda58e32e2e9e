"""Measures of a run that tables show, with their names, units and definitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tta_bench.report.corruptions import domain_groups
from tta_bench.report.groups import Entry, Group, Value
from tta_bench.report.intervals import paired_difference
from tta_bench.report.runs import RunRecord
from tta_bench.results.visits import SETTLED, SHORTEST, revisit_change

MIB = 2**20
COLLAPSED, COLLAPSED_MORE = 0.5, 0.25


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        key: Its name in files.
        title: Its displayed name.
        unit: Its unit; empty for a count.
        digits: Number of decimals shown.
        value: Reads it from a run; returns None if the run does not have it.
        ranked: Whether the best entries are marked.
        about: Its definition in one sentence.
        heading: Heading of a group of adjacent measures.
        higher: Whether higher is better.
    """

    key: str
    title: str
    unit: str
    digits: int
    value: Value
    ranked: bool = True
    about: str = ""
    heading: str = ""
    higher: bool = False

    def ranks(self, group: Group) -> dict[Entry, int]:
        """Rank the best and second best entries of a group."""
        return group.ranks(self.value, digits=self.digits, higher=self.higher) if self.ranked else {}

    def is_known(self, groups: Iterable[Group]) -> bool:
        """Whether any counted run has it."""
        return any(e.values(self.value) for group in groups for e in group.entries)


def _key(key: str, scale: float = 1.0) -> Value:
    def value(run: RunRecord) -> float | None:
        number = run.number(key)
        return None if number is None else scale * number

    return value


def _of_domain(key: str, domain: str) -> Value:
    def value(run: RunRecord) -> float | None:
        number = run.result.get(key, {}).get(domain)
        return None if number is None else float(number)

    return value


def _of_round(number: int, domain: str | None = None) -> Value:
    """Mean IoU of a domain in a round, or the mean over the domains."""

    def value(run: RunRecord) -> float | None:
        rounds = run.result.get("iou_by_round", ())
        if len(rounds) < number:
            return None
        found = rounds[number - 1]["mean"] if domain is None else rounds[number - 1]["domain"].get(domain)
        return None if found is None else float(found)

    return value


MEAN = Measure("mean_error", "Mean error", "%", 1, _key("mean_error"), about="Plain mean of the errors of all domains")
POOLED = Measure(
    "sample_error", "Error over all samples", "%", 1, _key("sample_error"),
    about="All samples have the same weight; differs from the mean error if domains differ in size",
)  # fmt: skip
MEAN_IOU = Measure(
    "mean_iou", "Mean IoU", "%", 1, _key("mean_iou"), higher=True,
    about="Intersection over union, averaged over the classes, then over the domains (and rounds)",
)  # fmt: skip
POOLED_IOU = Measure(
    "pooled_iou", "Mean IoU over all pixels", "%", 1, _key("pooled_iou"), higher=True,
    about="From one confusion matrix of all domains and rounds",
)  # fmt: skip
PIXEL_ERROR = Measure(
    "mean_error", "Pixel error", "%", 1, _key("mean_error"),
    about="Fraction of wrong pixels of an image, averaged over its domain, then over the domains",
)  # fmt: skip
COST = (
    Measure("forward_per_sample", "Forward passes", "per sample", 2, _key("forward_per_sample"), False),
    Measure("backward_per_sample", "Backward passes", "per sample", 2, _key("backward_per_sample"), False),
    Measure(
        "seconds_per_batch_median", "Time", "ms per batch", 1, _key("seconds_per_batch_median", 1000), False,
        "Median time to adapt to a batch, without loading; compare only on the same device",
    ),
    Measure("peak_memory_bytes", "Peak memory", "MiB", 0, _key("peak_memory_bytes", 1 / MIB), False,
            "Memory of the process on a CPU, allocated device memory on a GPU"),
    Measure("trainable_parameters", "Trained parameters", "", 0, _key("trainable_parameters"), False),
    Measure("extra_parameters", "Added parameters", "", 0, _key("extra_parameters"), False,
            "Scalars added to the source model"),
    Measure("coreset_size", "Coreset size", "", 1, _key("coreset_size"), False, "At the end of the stream"),
    Measure("source_seconds", "Source preparation", "s", 1, _key("source_seconds"), False,
            "Time before the stream; near zero if reused from an earlier run"),
)  # fmt: skip
ESTIMATES = (
    Measure("atc_accuracy", "ATC", "%", 1, _of_domain("label_free", "atc_accuracy"), False,
            "Estimated accuracy without labels: share of images above a confidence learned on labelled source images"),
    Measure("nuclear_norm", "Nuclear norm", "%", 1, _of_domain("label_free", "nuclear_norm"), False,
            "Of the predictions of a batch, relative to its largest value: high if confident and spread over classes"),
    Measure("source_agreement", "Agreement", "%", 1, _of_domain("label_free", "source_agreement"), False,
            "Share of images for which the source model predicts the same class"),
    Measure("confidence", "Confidence", "%", 1, _of_domain("label_free", "confidence"), False,
            "Mean probability of the predicted class"),
    Measure("confidence_drift", "Confidence drift", "points", 1,
            _of_domain("label_free", "confidence_drift"), False,
            "Mean confidence in the last tenth of the batches minus that in the first"),
    Measure("flip_rate", "Flips", "%", 1, _of_domain("label_free", "flip_rate"), False,
            "Share of images with another predicted class than the image before"),
    Measure("source_distance", "Distance of the data", "", 2, _of_domain("label_free", "source_distance"),
            False, "DPCore's distance of a batch's features under the source model to those of source images"),
)  # fmt: skip
EXTRA = (
    POOLED,
    Measure(
        "revisit_change", "Change on return", "points", 1, lambda run: revisit_change(run.trace.visits),
        about="Error of a domain's last visit minus that of its first, averaged over the domains that recur; "
        "negative is better",
    ),
    Measure(
        "recovery_batches", "Recovery", "batches", 1, lambda run: run.trace.recovery, False,
        f"Batches until the running error of a segment stays within {SETTLED:g} points of its last value, averaged "
        f"over the segments of at least {SHORTEST} batches of one domain that follow a change; compare with source",
    ),
    Measure("forgetting", "Forgetting", "points", 1, _key("forgetting"),
            about="Error on images of the source domain after the stream, minus the source model's on the same images"),
    Measure("source_error_after", "Source error after", "%", 1, _key("source_error_after"), False,
            "Error on images of the source domain after the stream; the source model may have been trained on them"),
    Measure("ece", "Calibration error", "%", 1, _key("ece"),
            about="Expected calibration error over 15 bins of confidence"),
    Measure("top_class_share", "Top class", "% of a batch", 1, _key("top_class_share", 100), False,
            "Fraction of the most frequently predicted class of a batch, averaged over the stream"),
)  # fmt: skip


def mean_measure(group: Group) -> Measure:
    """The measure by which methods are compared."""
    return MEAN_IOU if group.segments else MEAN


def extra_measures(group: Group) -> tuple[Measure, ...]:
    """Further measures that tables show."""
    return (POOLED_IOU, PIXEL_ERROR, *EXTRA[1:]) if group.segments else (*EXTRA, *ESTIMATES)


def domain_measures(group: Group) -> list[Measure]:
    """The error or mean IoU of each domain, in the order and with the headings of papers."""
    key, higher = ("domain_iou", True) if group.segments else ("domain_error", False)
    return [
        Measure(f"{key}/{name}", short, "%", 1, _of_domain(key, name), about=name, heading=heading, higher=higher)
        for heading, names in domain_groups(group.domains)
        for name, short in names.items()
    ]


def round_measures(group: Group) -> list[Measure]:
    """The mean IoU of each domain and their mean in each round; empty unless a stream has several rounds."""
    counted = [run for entry in group.entries for run in entry.counted.values()]
    rounds = max((len(run.result.get("iou_by_round", ())) for run in counted), default=0)
    names = [name for _, names in domain_groups(group.domains) for name in names]
    return [
        Measure(
            f"iou_round_{k}/{name}" if name else f"iou_round_{k}", name or "mean", "%", 1, _of_round(k, name),
            about=f"{name or 'mean'}, round {k}", heading=f"Round {k}", higher=True,
        )
        for k in range(1, rounds + 1)
        for name in (*names, None)
    ] if rounds > 1 else []  # fmt: skip


def column_measures(group: Group) -> list[Measure]:
    """Columns of a table besides the mean: domains, or domains in each round."""
    return round_measures(group) or domain_measures(group)


def best_first(group: Group) -> list[Entry]:
    """Sort entries by mean error or mean IoU; entries without a rank come last."""
    measure = mean_measure(group)

    def key(entry: Entry) -> tuple[bool, float]:
        score = entry.spread(measure.value)
        return not group.is_ranked(entry), (-score.mean if measure.higher else score.mean) if score else float("inf")

    return sorted(group.entries, key=key)


def has_collapsed(group: Group, entry: Entry) -> bool:
    """Whether the predictions have collapsed to few classes at the end of the stream.

    This is the case if, averaged over the batches of the last tenth, the most frequently predicted class has at least
    half of the samples, and at least 25 points more than with the baseline on the same streams: small batches and
    streams sorted by class have a large top class with any method. False without a baseline.
    """
    top = entry.spread(lambda run: run.trace.final_top_class)
    if top is None or group.baseline_entry is None:
        return False
    own, base = (e.values(lambda run: run.trace.final_top_class) for e in (entry, group.baseline_entry))
    more = paired_difference(own, base)
    return more is not None and top.mean >= COLLAPSED and more.mean >= COLLAPSED_MORE
