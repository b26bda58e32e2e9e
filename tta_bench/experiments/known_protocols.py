"""Published source errors, to identify the protocol that a measured source error corresponds to.

The source error of a checkpoint depends on the preprocessing, by more than most methods gain. The pattern over the
corruptions is more informative than the mean, so that a few hundred images are often enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tta_bench.datasets.corruptions import COMMON
from tta_bench.datasets.corruptions.names import corruption_and_severity

TOLERANCE = 1.0  # percentage points by which a different sample, rounding and versions may change an error
UNDECIDED = 20.0  # likelihood ratio below which another protocol is not ruled out


class Anchor(NamedTuple):
    """Source errors of a protocol, in percent, on the 15 corruptions at severity 5."""

    protocol: str
    source: str
    errors: Mapping[str, float]


def _anchor(protocol: str, source: str, *errors: float) -> Anchor:
    return Anchor(protocol, source, dict(zip(COMMON, errors, strict=True)))


ANCHORS: dict[str, tuple[Anchor, ...]] = {
    "imagenet_c": (
        _anchor(
            "model.preprocess=paper (ViT-B/16, values in [0, 1])", "Source in DPCore, ICML 2025, Table 1",
            53.0, 51.8, 52.1, 68.5, 78.8, 58.5, 63.3, 49.9, 54.2, 57.7, 26.4, 91.4, 57.5, 38.0, 36.2,
        ),
        _anchor(
            "model.preprocess=timm (ViT-B/16, normalised)", "mr-eggplant/SAR, issue 5",
            53.1, 52.3, 53.1, 57.1, 65.8, 49.2, 55.2, 43.0, 47.5, 43.5, 23.9, 68.1, 53.4, 34.5, 33.9,
        ),
    ),
    "cifar10_c": (
        _anchor(
            "ViT-B/16 at 384 pixels of the CTTA papers", "Source in DPCore, ICML 2025, appendix",
            60.1, 53.2, 38.3, 19.9, 35.5, 22.6, 18.6, 12.1, 12.7, 22.8, 5.3, 49.7, 23.6, 24.7, 23.1,
        ),
    ),
    "cifar100_c": (
        _anchor(
            "ViT-B/16 at 384 pixels of the CTTA papers", "Source in DPCore, ICML 2025, appendix",
            55.0, 51.5, 26.9, 24.0, 60.5, 29.0, 21.4, 21.1, 25.0, 35.2, 11.8, 34.8, 43.2, 56.0, 35.9,
        ),
    ),
}  # fmt: skip


class Count(NamedTuple):
    """Wrong predictions of the source model on the images of a domain."""

    wrong: int
    images: int


def mean_error(counts: Mapping[str, Count]) -> tuple[float, float]:
    """Plain mean of the domains' errors and half the width of its 95 % interval, in percent."""
    rates = [(c.wrong / c.images, c.images) for c in counts.values()]
    variance = sum(_variance(rate, n) for rate, n in rates) / len(rates) ** 2
    return 100 * sum(rate for rate, _ in rates) / len(rates), 196 * math.sqrt(variance)


def _variance(rate: float, n: int) -> float:
    rate = (rate * n + 1) / (n + 2)  # otherwise the interval for 0 wrong of 20 would have zero width
    return rate * (1 - rate) / n


def describe_protocol(dataset: str, data: Mapping[str, Any], counts: Mapping[str, Count]) -> str | None:
    """A sentence that names the known protocol closest to the source errors, and how certain this is.

    Args:
        dataset: Name of the data set.
        data: Its description in a result.
        counts: Per domain; domains that are not corruptions at severity 5 are ignored.

    Returns:
        The sentence; None if nothing is known about this data set, its classes or any of these domains.
    """
    severity = data.get("packed_from", data).get("severity", 0)
    named = {corruption_and_severity(name, severity): count for name, count in counts.items()}
    counts = {name: named[name, 5] for name in COMMON if (name, 5) in named}
    known = list(counts)
    if dataset not in ANCHORS or not known:
        return None
    if data.get("packed_from", data).get("classes", 1000) < 1000:  # of ImageNet's: an easier task than the published
        return None
    measured, half = mean_error(counts)
    fits = [(*_misfit(anchor, counts, known), anchor) for anchor in ANCHORS[dataset]]
    (least, squares, best), *others = sorted(fits, key=lambda fit: fit[0])
    told = f"{_mean(best, known):.1f} % there ({best.source}), {measured:.1f} ± {half:.1f} % here"
    if squares > len(known) + 3 * math.sqrt(2 * len(known)):
        return f"matches no known protocol; the closest is {best.protocol}: {told}"
    sentence = f"matches {best.protocol}: {told}"
    for misfit, _, other in others:
        if misfit - least < 2 * math.log(UNDECIDED):
            sentence += f"; {other.protocol} ({_mean(other, known):.1f} % there) is not ruled out: use more images"
    return sentence


def _mean(anchor: Anchor, known: list[str]) -> float:
    return sum(anchor.errors[name] for name in known) / len(known)


def _misfit(anchor: Anchor, counts: Mapping[str, Count], known: list[str]) -> tuple[float, float]:
    """Minus twice the log-likelihood, and the sum of squared deviations in units of their expected size."""
    squares = logs = 0.0
    for name in known:
        wrong, n = counts[name]
        expected = anchor.errors[name] / 100
        variance = expected * (1 - expected) / n + (TOLERANCE / 100) ** 2
        squares += (wrong / n - expected) ** 2 / variance
        logs += math.log(variance)
    return squares + logs, squares


def protocol_of(result: Mapping[str, Any], dataset: str) -> str | None:
    """The same of a finished run without adaptation; None of any other."""
    if result["method"] != "source" or result["status"] != "done":
        return None
    counts = {
        name: Count(round(error * result["num_samples"][name] / 100), result["num_samples"][name])
        for name, error in result["domain_error"].items()
        if error is not None
    }
    if len(counts) < len(result["domain_error"]) or "num_labelled" in result:
        return None  # published errors are of data sets with a label for every image
    return describe_protocol(dataset, result["data"], counts)
