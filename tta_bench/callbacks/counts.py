"""Counts of a batch: wrong images or pixels, confidences, and the share of the most predicted class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from tta_bench.functional.entropy import at_least_float32
from tta_bench.functional.segmentation import IGNORE, confusion_per_image, resized
from tta_bench.results.rows import BINS
from tta_bench.types import OutputKind, StreamBatch


class Counts(NamedTuple):
    """The part of a ``BatchRow`` that is counted from scores and labels."""

    by_domain: Mapping[str, tuple[int, float]]
    labelled: Mapping[str, int]
    top_class_share: float
    calibration: dict[int, tuple[int, float, int]]
    confusion: Mapping[str, Mapping[tuple[int, int], int]] | None


def count_images(scores: Tensor, kind: OutputKind, batch: StreamBatch, domains: Sequence[str]) -> Counts:
    """Count a batch of scores (B, K) with labels (B,), negative where an image has none.

    Such images count for the share of the most predicted class only.

    Args:
        scores: Scores of the method.
        kind: Whether they are logits or probabilities.
        batch: The batch, for its labels and domains.
        domains: Names of the domains by id.
    """
    confidence, predicted = kind.probabilities(scores.double()).max(dim=1)
    labelled = (batch.labels >= 0).double()
    wrong = (predicted != batch.labels).double() * labelled
    confident = _confident(confidence, 1 - wrong, labelled)
    top = torch.bincount(predicted, minlength=scores.shape[1]).amax().double()
    numbers = torch.cat(
        [batch.domain_ids.double(), wrong, labelled, confident, top[None]]
    ).tolist()  # one synchronisation
    n = len(scores)
    shares = _by_domain(numbers[:n], numbers[n : 2 * n], domains)
    by_domain = {name: (count, int(total)) for name, (count, total) in shares.items()}
    known = {name: int(k) for name, (_, k) in _by_domain(numbers[:n], numbers[2 * n : 3 * n], domains).items()}
    return Counts(by_domain, known, numbers[-1] / n, _calibration(numbers[3 * n : -1]), None)


def count_pixels(scores: Tensor, kind: OutputKind, batch: StreamBatch, domains: Sequence[str]) -> Counts:
    """Count a batch of scores (B, K, h, w) with label maps (B, H, W), at the size of the label maps.

    Args:
        scores: Scores of the method.
        kind: Whether they are logits or probabilities; logits are resized before the softmax, as in mmsegmentation.
        batch: The batch, for its labels and domains.
        domains: Names of the domains by id.
    """
    labels, (b, k) = batch.labels.long(), scores.shape[:2]
    scores = resized(at_least_float32(scores), (labels.shape[1], labels.shape[2]))
    confidence, predicted = kind.probabilities(scores).max(dim=1)
    counted = (labels != IGNORE).double()
    matrices = confusion_per_image(predicted, labels, k)
    pixels = matrices.sum((1, 2)).double()
    wrong = 1 - matrices.diagonal(dim1=1, dim2=2).sum(1) / pixels.clamp(min=1)
    wrong = torch.where(pixels > 0, wrong, 0.0)  # an image without labelled pixels has no error
    confident = _confident(confidence.flatten(), (predicted == labels).double().flatten(), counted.flatten())
    numbers = torch.cat(
        [batch.domain_ids.double(), wrong, pixels.sum()[None], confident, matrices.double().flatten()]
    ).tolist()  # fmt: skip  (one synchronisation; pixel counts are exact in float64)
    ids, shares, numbers = numbers[:b], numbers[b : 2 * b], numbers[2 * b :]
    by_domain, called = _by_domain(ids, shares, domains), [0.0] * k
    confusion: dict[str, dict[tuple[int, int], int]] = {name: {} for name in by_domain}
    cells = product(ids, range(k), range(k))
    for (domain, label, predicted_class), count in zip(cells, numbers[1 + 3 * BINS :], strict=True):
        if count:
            own, pair = confusion[domains[int(domain)]], (label, predicted_class)
            own[pair] = own.get(pair, 0) + int(count)
            called[predicted_class] += count
    top = max(called) / max(numbers[0], 1)
    known = {name: count for name, (count, _) in by_domain.items()}
    return Counts(by_domain, known, top, _calibration(numbers[1 : 1 + 3 * BINS]), confusion)


def _confident(confidence: Tensor, right: Tensor, counted: Tensor) -> Tensor:
    """For each confidence bin, the number of predictions, the sum of their confidences and the number correct."""
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    weights = (counted, counted * confidence, counted * right)
    return torch.cat([torch.bincount(bins, weights=each, minlength=BINS) for each in weights])


def _calibration(numbers: Sequence[float]) -> dict[int, tuple[int, float, int]]:
    bins = zip(numbers[:BINS], numbers[BINS : 2 * BINS], numbers[2 * BINS :], strict=True)
    return {i: (int(n), confidence, int(right)) for i, (n, confidence, right) in enumerate(bins) if n}


def _by_domain(ids: Sequence[float], wrong: Sequence[float], domains: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Number of images and summed error of each domain, in the order of the domain ids."""
    found: dict[int, tuple[int, float]] = {}
    for domain, share in zip(map(int, ids), wrong, strict=True):
        n, total = found.get(domain, (0, 0.0))
        found[domain] = (n + 1, total + share)
    return {domains[i]: found[i] for i in sorted(found)}
