"""What the settings share: seeded generators, argument checks, and cutting samples into batches."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tta_bench.streams.schedule import IntArray, Schedule


def rng_for(seed: int, *scope: str) -> np.random.Generator:
    """A generator that depends only on (seed, purpose, name), never on earlier draws.

    Raises:
        ValueError: If ``seed`` is negative or not an integer.

    Example:
        >>> rng_for(0, "shuffle", "fog").random() == rng_for(0, "shuffle", "fog").random()
        True
        >>> rng_for(0, "shuffle", "fog").random() == rng_for(0, "shuffle", "snow").random()
        False
    """
    seed = whole_number("seed", seed, least=0)
    digest = hashlib.sha256(json.dumps([seed, *scope]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def whole_number(name: str, value: Any, *, least: int) -> int:
    """``value`` as an int.

    Raises:
        ValueError: If it is not an integer or is below ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return number


def positive_number(name: str, value: float) -> float:
    """``value`` as a float.

    Raises:
        ValueError: If it is not finite or not positive.
    """
    if not (isinstance(value, (int, float, np.number)) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, not {value!r}")
    return float(value)


def checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Samples per domain as plain ints.

    Raises:
        ValueError: If there are no domains, or a domain has no samples.
    """
    if not sizes:
        raise ValueError("sizes is empty: a stream needs at least one domain")
    return {domain: whole_number(f"the size of {domain!r}", n, least=1) for domain, n in sizes.items()}


def checked(sizes: Mapping[str, int], batch_size: int) -> tuple[dict[str, int], int]:
    """Sizes and batch size as plain ints.

    Raises:
        ValueError: If there are no domains, a domain has no samples, or the batch size is below 1.
    """
    return checked_sizes(sizes), whole_number("batch_size", batch_size, least=1)


def checked_labels(labels: Mapping[str, Any]) -> dict[str, IntArray]:
    """Class labels per domain as one-dimensional integer arrays.

    Raises:
        ValueError: If there are no domains, a domain has no labels, or the labels are not integers.
    """
    if not labels:
        raise ValueError("labels is empty: a stream needs at least one domain")
    arrays = {domain: np.asarray(values) for domain, values in labels.items()}
    for domain, array in arrays.items():
        if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
            raise ValueError(f"the labels of {domain!r} must be a non-empty one-dimensional array of integers")
    return arrays


def shuffled(sizes: Mapping[str, int], seed: int) -> dict[str, IntArray]:
    """Each domain's rows in random order; the order depends only on the seed and the domain's name and size."""
    return {domain: rng_for(seed, "shuffle", domain).permutation(n) for domain, n in sizes.items()}


def num_batches(num_samples: int, batch_size: int) -> int:
    """Number of batches that ``num_samples`` fill; the last one may be short but is never empty."""
    return -(-num_samples // batch_size)


def slot_bounds(shares: np.ndarray[Any, Any], count: int | IntArray) -> IntArray:
    """Cut ``count`` items into slots at floor(cumsum(shares) * count).

    Args:
        shares: (..., S) rows that sum to 1.
        count: Number of items; an integer, or an array (..., 1).

    Returns:
        (..., S + 1) bounds from 0 to ``count``.

    Raises:
        ValueError: If a share is not finite, which is what NumPy returns for extreme Dirichlet parameters.

    Example:
        >>> slot_bounds(np.array([0.5, 0.3, 0.2]), 10)
        array([ 0,  5,  8, 10])
    """
    if not np.isfinite(shares).all():
        raise ValueError("NumPy cannot sample such an extreme Dirichlet distribution: choose a more moderate parameter")
    inner = np.floor(np.cumsum(shares, axis=-1)[..., :-1] * count).astype(np.int64)
    edge = np.zeros_like(shares[..., :1], dtype=np.int64)
    return np.concatenate([edge, inner, edge + count], axis=-1)


def from_parts(
    kind: str, params: Mapping[str, Any], parts: Sequence[tuple[str, IntArray]], batch_size: int
) -> Schedule:
    """Join (domain, rows) parts; each part is cut into batches separately, so that no batch mixes domains."""
    parts = [(domain, rows) for domain, rows in parts if len(rows)]
    names = list(dict.fromkeys(domain for domain, _ in parts))
    ids = np.repeat([names.index(domain) for domain, _ in parts], [len(rows) for _, rows in parts])
    indices = np.concatenate([rows for _, rows in parts])
    sizes = np.concatenate([_batch_sizes(len(rows), batch_size) for _, rows in parts])
    return Schedule(kind, params, tuple(names), ids, indices, np.append(0, np.cumsum(sizes)))


def from_samples(
    kind: str,
    params: Mapping[str, Any],
    domains: Sequence[str],
    ids: IntArray,
    rows: IntArray,
    batch_size: int,
) -> Schedule:
    """Cut a sequence of samples into batches regardless of domain changes; domain ids are renumbered by arrival."""
    used, first = np.unique(ids, return_index=True)
    arrived = used[np.argsort(first)]
    new_ids = np.empty(len(domains), dtype=np.int64)
    new_ids[arrived] = np.arange(len(arrived))
    offsets = np.append(0, np.cumsum(_batch_sizes(len(ids), batch_size)))
    return Schedule(kind, params, tuple(domains[i] for i in arrived), new_ids[ids], rows, offsets)


def _batch_sizes(num_samples: int, batch_size: int) -> IntArray:
    sizes = np.full(num_batches(num_samples, batch_size), batch_size)
    sizes[-1] = num_samples - batch_size * (len(sizes) - 1)
    return sizes
