"""One pure function per setting of the literature: sizes (or labels) in, schedule out.

They all follow three rules. Batches are cut per domain, the last one possibly short, and never mix domains unless the
setting says so. Each sample arrives exactly once. Random numbers come from generators scoped by (seed, purpose,
domain), so that a domain's samples arrive in the same order whatever other domains there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tta_bench.streams.assemble import (
    checked,
    checked_labels,
    from_parts,
    from_samples,
    num_batches,
    positive_number,
    rng_for,
    shuffled,
    slot_bounds,
    whole_number,
)
from tta_bench.streams.draws import Probabilities, Rng, draw_rows, draw_runs, draw_slots
from tta_bench.streams.schedule import IntArray, Schedule


def csc(sizes: Mapping[str, int], *, batch_size: int = 64, seed: int = 0) -> Schedule:
    """Continual Structured Change: each domain once, in the order of ``sizes``.

    Args:
        sizes: Samples per domain.
        batch_size: Samples per batch (B).
        seed: Seed of the order of the samples within each domain.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> stream = csc({"fog": 5, "snow": 2}, batch_size=2)
        >>> [len(step.indices) for step in stream]
        [2, 2, 1, 2]

    Source: CoTTA (CVPR 2022); named CSC in DPCore (ICML 2025), section "Continual Dynamic Change".
    """
    sizes, batch_size = checked(sizes, batch_size)
    params = {"batch_size": batch_size, "seed": seed}
    return from_parts("csc", params, list(shuffled(sizes, seed).items()), batch_size)


def cdc(
    sizes: Mapping[str, int],
    *,
    batch_size: int = 64,
    seed: int = 0,
    delta: float = 1.0,
    slots: int = 3,
    rng: Rng = "scoped",
) -> Schedule:
    """Continual Dynamic Change: a Dirichlet draw spreads each domain's batches over slots.

    For each domain, shares ~ Dirichlet(delta * 1_slots) cut its batches into one chunk per slot; the chunks of a slot
    arrive in random order. The batches are those of :func:`csc` with the same seed. With ``"scoped"``, shares and
    positions are drawn per domain, so that reordering ``sizes`` or adding a domain leaves the other domains unchanged.

    Args:
        sizes: Samples per domain.
        batch_size: Samples per batch (B).
        seed: Seed of all random draws.
        delta: Dirichlet parameter; small values resemble CSC, with large ones the domain changes more often.
        slots: Number of slots (3 in the released code), and so the largest number of visits to a domain.
        rng: ``"legacy"`` reproduces the released code's order of batches after ``np.random.seed(seed)``, using a
            separate generator. Samples then keep their natural order, since the released code leaves shuffling to its
            data loader. The released code makes ``N // B + 1`` batches per domain, so that the last one is empty if B
            divides N; here no batch is empty, so the orders agree only if B does not divide N.

    Raises:
        ValueError: If an argument is out of range.

    Source: DPCore (ICML 2025), section "Continual Dynamic Change"; released code, ``create_cdc_sequence``.
    """
    sizes, batch_size = checked(sizes, batch_size)
    delta, slots = positive_number("delta", delta), whole_number("slots", slots, least=1)
    shares, order = draw_slots(rng, list(sizes), delta, slots, seed)
    batches = {domain: num_batches(n, batch_size) for domain, n in sizes.items()}
    bounds = slot_bounds(shares, np.array(list(batches.values()))[:, None])
    domains, counts = list(sizes), np.diff(bounds, axis=1)
    runs = [(domains[i], int(counts[i, slot])) for slot in range(slots) for i in order[slot]]
    params = {"batch_size": batch_size, "seed": seed, "delta": delta, "slots": slots, "rng": rng}
    return from_parts("cdc", params, _deal(draw_rows(rng, sizes, seed), runs, batch_size), batch_size)


def cdc_2d(
    sizes: Mapping[str, int],
    *,
    batch_size: int = 64,
    seed: int = 0,
    probabilities: Probabilities = "uniform",
    rng: Rng = "scoped",
) -> Schedule:
    """CDC from two distributions: which domain comes next, and for how many batches.

    Until all batches are used, choose a domain that has batches left, then show a uniformly random number of them.

    Args:
        sizes: Samples per domain.
        batch_size: Samples per batch (B).
        seed: Seed of all random draws.
        probabilities: How likely each domain is to be chosen: ``"uniform"``, one of the fixed random vectors ``"R1"``
            to ``"R10"``, one positive number per domain in the order of ``sizes``, or a mapping from domain to
            positive number. Normalised over the domains that have batches left.
        rng: As in :func:`cdc`; ``"legacy"`` supports only uniform probabilities.

    Raises:
        ValueError: If an argument is out of range.

    Source: DPCore (ICML 2025), appendix "CDC with Other Distributions"; released code,
        ``create_cdc_sequence`` with ``distribution="multinomial"``. The paper's ten vectors R1-R10 are not
        published, so ours differ.
    """
    sizes, batch_size = checked(sizes, batch_size)
    batches = {domain: num_batches(n, batch_size) for domain, n in sizes.items()}
    runs = draw_runs(rng, batches, probabilities, seed)
    params = {"batch_size": batch_size, "seed": seed, "probabilities": probabilities, "rng": rng}
    return from_parts("cdc_2d", params, _deal(draw_rows(rng, sizes, seed), runs, batch_size), batch_size)


def ptta(
    labels: Mapping[str, Any],
    *,
    batch_size: int = 64,
    seed: int = 0,
    concentration: float = 0.1,
    slots: int | None = None,
) -> Schedule:
    """Practical TTA: domains in order, with temporally correlated labels within each domain.

    For each class, shares ~ Dirichlet(concentration * 1_slots) cut its samples into one chunk per slot; the chunks of
    a slot arrive in random order, each in one piece. As the concentration tends to 0, each class arrives in a single
    run; for large values every slot holds all classes equally, which is nearly i.i.d. if chunks are small. Domains are
    joined before batches are cut, as in RoTTA, so a batch may straddle a boundary.

    Args:
        labels: Class of every sample of each domain, (N,) integers.
        batch_size: Samples per batch (B).
        seed: Seed of all random draws.
        concentration: Dirichlet parameter; gamma in RoTTA.
        slots: Number of slots; by default the number of classes in the domain, at most 100.

    Raises:
        ValueError: If an argument is out of range.

    Source: RoTTA (CVPR 2023); released code, ``LabelDirichletDomainSequence``. Departures: the samples of a class are
        shuffled before they are cut, and domains arrive in the order of ``labels``; the released code keeps the
        natural order of the samples and sorts the domains by name.
    """
    labels, batch_size = checked_labels(labels), whole_number("batch_size", batch_size, least=1)
    concentration = positive_number("concentration", concentration)
    slots = None if slots is None else whole_number("slots", slots, least=1)
    sizes = {domain: len(values) for domain, values in labels.items()}
    arrivals = [
        _correlated(rows, labels[domain], slots, concentration, rng_for(seed, "ptta", domain))
        for domain, rows in shuffled(sizes, seed).items()
    ]
    ids = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    params = {"batch_size": batch_size, "seed": seed, "concentration": concentration, "slots": slots}
    return from_samples("ptta", params, list(sizes), ids, np.concatenate(arrivals), batch_size)


def gradual(
    sizes: Mapping[str, int],
    *,
    batch_size: int = 64,
    seed: int = 0,
    severities: Sequence[int] = (1, 2, 3, 4, 5, 4, 3, 2, 1),
) -> Schedule:
    """Gradual change: each corruption rises and falls in severity before the next one begins.

    The domain ``"fog"`` becomes ``"fog/1"`` to ``"fog/5"``. Its samples are split as evenly as possible among the
    visits; if there are fewer samples than visits, the last visits are dropped.

    Args:
        sizes: Samples per corruption.
        batch_size: Samples per batch (B).
        seed: Seed of the order of the samples within each corruption.
        severities: The ramp, one visit each.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> gradual({"fog": 6}, severities=(1, 5, 1)).segments()[1]
        Segment(domain='fog/5', start=2, stop=4)

    Source: the gradual setting of CoTTA (CVPR 2022) and mariodoebler/test-time-adaptation. Departure: they show all
        samples at every severity; here each sample arrives once, so that all streams have the same length.
    """
    sizes, batch_size = checked(sizes, batch_size)
    ramp = [whole_number("a severity", severity, least=1) for severity in severities]
    if not ramp:
        raise ValueError("severities is empty: give at least one severity")
    parts = [
        (f"{domain}/{severity}", chunk)
        for domain, rows in shuffled(sizes, seed).items()
        for severity, chunk in zip(ramp, np.array_split(rows, len(ramp)), strict=True)
    ]
    params = {"batch_size": batch_size, "seed": seed, "severities": ramp}
    return from_parts("gradual", params, parts, batch_size)


def blurred(sizes: Mapping[str, int], *, batch_size: int = 64, seed: int = 0, width: int = 10) -> Schedule:
    """CSC with blurred boundaries: near a boundary, the share of the next domain rises linearly from 0 to 1.

    Batches are cut as in :func:`csc`. The last ``width * batch_size`` samples of a domain are mixed with as many of
    the next, but at most half of either domain; all other batches are those of CSC.

    Args:
        sizes: Samples per domain.
        batch_size: Samples per batch (B).
        seed: Seed of all random draws.
        width: Batches' worth of samples mixed on each side of a boundary; 0 gives CSC.

    Raises:
        ValueError: If an argument is out of range.

    Source: the blurred boundaries of BECoTTA (ICML 2024), as described in the appendix of DPCore (ICML 2025).
    """
    plain = csc(sizes, batch_size=batch_size, seed=seed)
    reach = whole_number("width", width, least=0) * batch_size
    arrival = np.arange(plain.num_samples)
    boundaries = np.cumsum(list(sizes.values())).tolist()
    for (before, after), boundary in zip(pairwise(sizes), boundaries[:-1], strict=True):
        near = min(reach, sizes[before] // 2, sizes[after] // 2)
        # Positions with density 2(1 - x) for one domain and 2x for the other: at x the other has share x.
        places = np.sqrt(rng_for(seed, "blur", before, after).random(2 * near))
        places[:near] = 1 - places[:near]
        arrival[boundary - near : boundary + near] = boundary - near + np.argsort(places, kind="stable")
    params = {**plain.params, "width": width}
    ids, rows = plain.domain_ids[arrival], plain.indices[arrival]
    return Schedule("blurred", params, plain.domains, ids, rows, plain.offsets)


def mixed(sizes: Mapping[str, int], *, batch_size: int = 64, seed: int = 0) -> Schedule:
    """All domains shuffled together, so that a batch holds several.

    Args:
        sizes: Samples per domain.
        batch_size: Samples per batch (B).
        seed: Seed of the order.

    Raises:
        ValueError: If an argument is out of range.

    Source: the mixed domain shifts of SAR (ICLR 2023).
    """
    sizes, batch_size = checked(sizes, batch_size)
    ids = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    rows = np.concatenate([np.arange(n) for n in sizes.values()])
    # Sorting one random key per sample keeps the order of the other samples when a domain is added.
    keys = [rng_for(seed, "mixed", domain).random(n) for domain, n in sizes.items()]
    order = np.argsort(np.concatenate(keys), kind="stable")
    params = {"batch_size": batch_size, "seed": seed}
    return from_samples("mixed", params, list(sizes), ids[order], rows[order], batch_size)


def _deal(rows: Mapping[str, IntArray], runs: Sequence[tuple[str, int]], batch_size: int) -> list[tuple[str, IntArray]]:
    """Distribute each domain's batches over its runs; a run is (domain, number of batches)."""
    dealt, parts = dict.fromkeys(rows, 0), []
    for domain, count in runs:
        start, stop = dealt[domain] * batch_size, (dealt[domain] + count) * batch_size
        parts.append((domain, rows[domain][start:stop]))
        dealt[domain] += count
    return parts


def _correlated(
    rows: IntArray, labels: IntArray, slots: int | None, concentration: float, rng: np.random.Generator
) -> IntArray:
    """Order a domain's rows (N,) slot by slot, and within a slot class by class."""
    classes, class_of = np.unique(labels, return_inverse=True)
    num_slots = slots or min(len(classes), 100)
    rows = rows[np.argsort(class_of[rows], kind="stable")]
    shares = rng.dirichlet(np.full(num_slots, concentration), len(classes))
    chunks = np.diff(slot_bounds(shares, np.bincount(class_of)[:, None]))  # samples per (class, slot)
    slot_of = np.repeat(np.tile(np.arange(num_slots), len(classes)), chunks.ravel())
    place_in_slot = rng.random((num_slots, len(classes)))[slot_of, class_of[rows]]
    return rows[np.lexsort((place_in_slot, slot_of))]
