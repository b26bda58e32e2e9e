"""Confusion matrices of segmentation as counts of pixels, and their IoU. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Confusion = Mapping[tuple[int, int], int]
"""Number of pixels by (label, prediction), without pairs that do not occur and without ignored pixels."""


def class_iou(counts: Confusion) -> dict[int, float]:
    """IoU of each class that occurs in labels or predictions, in percent.

    Classes that occur in neither are left out.

    Source: PASCAL VOC (Everingham et al., IJCV 2010), Sec. 4.4; absent classes as in mmsegmentation.

    Example:
        >>> class_iou({(0, 0): 2, (1, 0): 1, (1, 1): 1})
        {0: 66.66666666666667, 1: 50.0}
    """
    either: dict[int, int] = {}
    for (label, predicted), pixels in counts.items():
        for k in {label, predicted}:
            either[k] = either.get(k, 0) + pixels
    return {k: 100 * counts.get((k, k), 0) / either[k] for k in sorted(either) if either[k]}


def mean_iou(counts: Confusion) -> float | None:
    """Mean IoU over the classes that occur, in percent; None if there are none."""
    found = class_iou(counts)
    return fmean(found.values()) if found else None


def to_text(by_domain: Mapping[str, Confusion]) -> str:
    """Format as one cell of a table: ``0>0=51 0>1=3;2>2=7``, label>prediction=pixels, one part per domain."""
    return ";".join(" ".join(f"{a}>{b}={n}" for (a, b), n in counts.items()) for counts in by_domain.values())


def from_text(text: str, domains: Sequence[str]) -> dict[str, Confusion]:
    """Parse the output of ``to_text``, for the same domains in the same order.

    Raises:
        ValueError: If the text does not have this format.
    """
    return {name: _counts(part) for name, part in zip(domains, text.split(";"), strict=True)}


def _counts(text: str) -> dict[tuple[int, int], int]:
    found = {}
    for part in text.split():
        pair, _, pixels = part.partition("=")
        label, _, predicted = pair.partition(">")
        found[int(label), int(predicted)] = int(pixels)
    return found


class IouTally:
    """Confusion matrices of a stream so far, by domain and by round.

    Args:
        classes: Names of the classes; unnamed classes are called by their number.
        steps_per_round: Batches per round of the stream; None if there is only one round.
    """

    def __init__(self, classes: Sequence[str] = (), steps_per_round: int | None = None) -> None:
        self.classes, self.steps_per_round = tuple(classes), steps_per_round
        self._pooled: dict[tuple[int, int], int] = {}
        self._domains: dict[str, dict[tuple[int, int], int]] = {}
        self._rounds: list[dict[str, dict[tuple[int, int], int]]] = []

    def add(self, step: int, by_domain: Mapping[str, Confusion]) -> None:
        """Count the batch at ``step``."""
        number = step // self.steps_per_round if self.steps_per_round else 0
        self._rounds += [{} for _ in range(number + 1 - len(self._rounds))]
        for name, counts in by_domain.items():
            totals = (self._pooled, self._domains.setdefault(name, {}), self._rounds[number].setdefault(name, {}))
            for total in totals:
                for pair, pixels in counts.items():
                    total[pair] = total.get(pair, 0) + pixels

    @property
    def confusion(self) -> dict[tuple[int, int], int]:
        """Pixels of all domains and rounds by class and prediction."""
        return dict(self._pooled)

    @property
    def pooled(self) -> float | None:
        """Mean IoU over all pixels of all domains and rounds, in percent."""
        return mean_iou(self._pooled)

    @property
    def by_round(self) -> list[dict[str, float | None]]:
        """Mean IoU of each domain in each round, in percent."""
        return [{name: mean_iou(counts) for name, counts in domains.items()} for domains in self._rounds]

    @property
    def by_domain(self) -> dict[str, float | None]:
        """Mean IoU of each domain, averaged over the rounds, in percent; each round has its own confusion matrix."""
        rounds = self.by_round
        return {name: _mean(found.get(name) for found in rounds) for name in self._domains}

    def logged(self, domains: Iterable[str]) -> dict[str, float]:
        """Numbers for loggers after each batch: mean IoU so far, of all pixels and of these domains."""
        own = {
            f"domain/{name}_iou": _mean(mean_iou(seen[name]) for seen in self._rounds if name in seen)
            for name in domains
        }
        return {k: x for k, x in {"stream/running_iou": self.pooled, **own}.items() if x is not None}

    def summary(self) -> dict[str, Any]:
        """Entries of ``result.json`` on IoU, all in percent.

        ``mean_iou`` is the plain mean of ``domain_iou``, which is averaged over rounds. ``class_iou`` and
        ``class_iou_by_domain`` count all rounds together, with None for classes that do not occur.
        """
        by_domain = self.by_domain
        return {
            "mean_iou": _mean(by_domain.values()),
            "pooled_iou": self.pooled,
            "domain_iou": by_domain,
            "iou_by_round": [{"mean": _mean(found.values()), "domain": found} for found in self.by_round],
            "class_iou": self._named(self._pooled),
            "class_iou_by_domain": {name: self._named(counts) for name, counts in self._domains.items()},
        }

    def _named(self, counts: Confusion) -> dict[str, float | None]:
        found = class_iou(counts)
        numbers = range(max([len(self.classes), *(k + 1 for k in found)]))
        return {self.classes[k] if k < len(self.classes) else str(k): found.get(k) for k in numbers}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
