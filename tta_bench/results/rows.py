"""Results of each batch of a run, and running counts over the stream. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from tta_bench.results.confusion import Confusion, IouTally
from tta_bench.results.proportion import wilson

_OF_LABELS = ("stream/running_error", "stream/mean_error", "stream/calibration_error")
BINS = 15  # of equal width, for the calibration error


@dataclass(frozen=True)
class BatchRow:
    """Results of one batch.

    Attributes:
        step: Position in the stream.
        by_domain: Per domain of the batch, the number of samples and of wrong predictions among those with a label;
            for segmentation, the number of images and the sum of their fractions of wrong pixels.
        forward_samples: Number of images passed forward through the backbone.
        backward_samples: Number of images passed backward through it.
        seconds: Duration of the adaptation, without loading.
        diagnostics: The method's own numbers.
        top_class_share: Fraction of the most frequently predicted class; a value near 1 in a stream of many classes
            means that the method has collapsed.
        calibration: Per non-empty confidence bin, the number of samples, the sum of their confidences and the number
            of correct predictions; for segmentation, of pixels.
        labelled: Per domain, as in ``by_domain``, the number of samples with a label; None if all samples have one.
        label_free: Figures that need no labels, as ``LabelFree`` gives them; None if they are not measured.
        confusion: Per domain, as in ``by_domain``, the pixels by class and prediction; None for classification.
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
    labelled: Mapping[str, int] | None = None
    label_free: Mapping[str, float] | None = None

    @property
    def samples(self) -> int:
        """Number of samples B."""
        return sum(n for n, _ in self.by_domain.values())

    @property
    def known(self) -> Mapping[str, int]:
        """Per domain of the batch, how many samples have a label."""
        return {name: n for name, (n, _) in self.by_domain.items()} if self.labelled is None else self.labelled

    @property
    def num_known(self) -> int:
        """Number of samples with a label."""
        return self.samples if self.labelled is None else sum(self.labelled.values())

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
    """Running counts over a stream; errors and IoU are computed from counts, never from means of means.

    Args:
        iou: Counts pixels; None for classification.
    """

    def __init__(self, iou: IouTally | None = None) -> None:
        self.iou = iou
        self.samples: dict[str, int] = {}
        self.labelled: dict[str, int] = {}
        self.wrong: dict[str, float] = {}
        self.forward_samples = self.backward_samples = 0
        self.seconds: list[float] = []
        self.coreset_size: float | None = None
        self.partly = False
        self._label_free: list[tuple[int, Mapping[str, float]]] = []
        self._top_class = 0.0
        self.bins: dict[int, tuple[int, float, int]] = {}

    def add(self, row: BatchRow) -> None:
        """Count one batch."""
        known = row.known
        for name, (n, wrong) in row.by_domain.items():
            self.samples[name] = self.samples.get(name, 0) + n
            self.wrong[name] = self.wrong.get(name, 0) + wrong
            self.labelled[name] = self.labelled.get(name, 0) + known[name]
        if row.label_free is not None:
            self._label_free.append((row.samples, row.label_free))
        self.partly = self.partly or row.labelled is not None
        if row.confusion is not None:
            self.iou = self.iou or IouTally()
            self.iou.add(row.step, row.confusion)
        self.forward_samples += row.forward_samples
        self.backward_samples += row.backward_samples
        self.seconds.append(row.seconds)
        self.coreset_size = row.diagnostics.get("coreset_size")
        self._top_class += row.samples * row.top_class_share
        for key, (count, confidence, right) in row.calibration.items():
            n, c, r = self.bins.get(key, (0, 0.0, 0))
            self.bins[key] = (n + count, c + confidence, r + right)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error in percent: the mean gap between confidence and accuracy over the bins.

        Source: Guo et al., ICML 2017, Eq. 3, with 15 bins.
        """
        n = sum(count for count, _, _ in self.bins.values())
        return 100 * sum(abs(c - right) for _, c, right in self.bins.values()) / n if n else math.nan

    @property
    def domain_error(self) -> dict[str, float | None]:
        """Error over the labelled samples of each domain in percent, None without any; in order of appearance."""
        return {name: 100 * self.wrong[name] / n if n else None for name, n in self.labelled.items()}

    @property
    def mean_error(self) -> float:
        """Plain mean of the domains' errors, in percent; nan before the first labelled sample."""
        known = [error for error in self.domain_error.values() if error is not None]
        return fmean(known) if known else math.nan

    @property
    def sample_error(self) -> float:
        """Error over all labelled samples, in percent; nan before the first."""
        n = sum(self.labelled.values())
        return 100 * sum(self.wrong.values()) / n if n else math.nan

    def summary(self) -> dict[str, Any]:
        """Entries of ``result.json`` that are computed from the counts."""
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
            **(self._label_summary() if self.partly else {}),
            **({"label_free": self._label_free_summary()} if self._label_free else {}),
        }

    def _label_free_summary(self) -> dict[str, float | None]:
        """Means over the samples in percent, the distance in feature units; None where nothing was measured."""
        rows = self._label_free
        tenth = max(1, len(rows) // 10)
        found = {key: _mean_of(rows, key) for key in ("confidence", "source_agreement", "atc_accuracy", "nuclear_norm")}
        first, last = _mean_of(rows[:tenth], "confidence"), _mean_of(rows[-tenth:], "confidence")
        pairs = sum(n for n, _ in rows) - 1
        distance = _mean_of(rows, "source_distance")
        return {
            **{key: None if x is None else 100 * x for key, x in found.items()},
            "confidence_drift": None if first is None or last is None else 100 * (last - first),
            "flip_rate": 100 * sum(figures["flips"] for _, figures in rows) / pairs if pairs else None,
            "source_distance": distance,
        }

    def _label_summary(self) -> dict[str, Any]:
        """Of a stream in which some samples have no label: how many have one, and how far their error may be off."""
        n = sum(self.labelled.values())
        ends = list(wilson(sum(self.wrong.values()), n)) if n else None
        return {"num_labelled": self.labelled, "sample_error_interval": ends}


def logged_numbers(row: BatchRow, tally: Tally) -> dict[str, float]:
    """Numbers for loggers after a batch, over ``stream/step``; ``tally`` already includes the batch."""
    errors, known = tally.domain_error, row.num_known
    found = {
        "stream/step": row.step,
        "stream/error": 100 * row.wrong / known if known else None,
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
        **{f"label_free/{key}": value for key, value in (row.label_free or {}).items() if key != "last_class"},
    }
    if tally.partly:  # numbers of labels that have not come yet
        found = {key: x for key, x in found.items() if x is not None and not (key in _OF_LABELS and math.isnan(x))}
    return found  # type: ignore[return-value]  # without partly, no value is None


def _mean_of(rows: Sequence[tuple[int, Mapping[str, float]]], key: str) -> float | None:
    """Mean over the samples of batches in which the figure was measured."""
    known = [(n, figures[key]) for n, figures in rows if not math.isnan(figures[key])]
    return sum(n * x for n, x in known) / sum(n for n, _ in known) if known else None


def _none_if_nan(x: float) -> float | None:
    return None if math.isnan(x) else x
