"""The random draws of the two CDC settings, from our scoped generators or in the released code's order.

The released code calls NumPy's legacy functions on the global generator. ``"legacy"`` makes the same calls in the
same order on a separate ``RandomState``, so that nothing else in the program can affect the stream.

Source: DPCore (ICML 2025), released code, ``create_cdc_sequence``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tta_bench.streams.assemble import positive_number, rng_for, shuffled, whole_number
from tta_bench.streams.orders import fixed_probabilities
from tta_bench.streams.schedule import IntArray

Rng = Literal["scoped", "legacy"]
Probabilities = str | Sequence[float] | Mapping[str, float]


def draw_slots(
    rng: Rng, domains: Sequence[str], delta: float, slots: int, seed: int
) -> tuple[npt.NDArray[Any], IntArray]:
    """The Dirichlet shares of each domain and the order of the domains in each slot.

    Args:
        rng: ``"scoped"`` or ``"legacy"``.
        domains: D names.
        delta: Dirichlet parameter.
        slots: Number of slots (S).
        seed: Seed.

    Returns:
        Shares (D, S), each row summing to 1, and for each slot a permutation of the domains (S, D).

    Raises:
        ValueError: If ``rng`` is unknown or the seed is out of range.
    """
    if _is_legacy(rng):
        state = _legacy_state(seed)
        shares = state.dirichlet(np.full(slots, delta), len(domains))
        return shares, np.array([state.permutation(len(domains)) for _ in range(slots)])
    generators = [rng_for(seed, "cdc", domain) for domain in domains]
    shares = np.array([generator.dirichlet(np.full(slots, delta)) for generator in generators])
    # Sorting one random key per domain and slot keeps the order of the other domains when a domain is added.
    keys = np.array([generator.random(slots) for generator in generators])
    return shares, keys.argsort(axis=0, kind="stable").T


def draw_runs(rng: Rng, batches: Mapping[str, int], probabilities: Probabilities, seed: int) -> list[tuple[str, int]]:
    """Repeatedly choose a domain with batches left and how many of them to show, until no batches are left.

    Choosing only among domains with batches left is equivalent to the paper's redrawing of exhausted domains.

    Args:
        rng: ``"scoped"`` or ``"legacy"``.
        batches: Number of batches of each domain.
        probabilities: How likely each domain is to be chosen.
        seed: Seed.

    Returns:
        (domain, number of batches) in order of arrival.

    Raises:
        ValueError: If an argument is out of range, or ``rng`` is ``"legacy"`` and the probabilities are not uniform.
    """
    weights = _relative_weights(probabilities, list(batches))
    if _is_legacy(rng) and weights is not None:
        raise ValueError("rng='legacy' is the released code's generator, which supports only uniform probabilities")
    state = _legacy_state(seed) if _is_legacy(rng) else rng_for(seed, "cdc_2d")
    left, runs = dict(batches), []
    while left:
        names = list(left)
        domain = names[state.choice(len(names), p=_chances(weights, names))]
        count = 1 + int(state.choice(left[domain]))
        runs.append((domain, count))
        left[domain] -= count
        if not left[domain]:
            del left[domain]
    return runs


def draw_rows(rng: Rng, sizes: Mapping[str, int], seed: int) -> dict[str, IntArray]:
    """Each domain's rows: shuffled, or in natural order for ``"legacy"``, where the data loader shuffles them."""
    if _is_legacy(rng):
        return {domain: np.arange(n) for domain, n in sizes.items()}
    return shuffled(sizes, seed)


def _chances(weights: Mapping[str, float] | None, names: Sequence[str]) -> npt.NDArray[Any] | None:
    """Probabilities of these domains; None, which NumPy takes as uniform, if they are uniform."""
    if weights is None:
        return None
    chances: npt.NDArray[Any] = np.array([weights[name] for name in names])
    chances /= chances.max()  # the sum of huge weights would overflow
    chances /= chances.sum()
    return chances


def _is_legacy(rng: str) -> bool:
    if rng not in ("scoped", "legacy"):
        raise ValueError(f"rng must be 'scoped' or 'legacy', not {rng!r}")
    return rng == "legacy"


def _legacy_state(seed: int) -> np.random.RandomState:
    return np.random.RandomState(whole_number("seed", seed, least=0))


def _relative_weights(probabilities: Probabilities, domains: Sequence[str]) -> dict[str, float] | None:
    """Relative probability of each domain; None means uniform."""
    if isinstance(probabilities, str):
        if probabilities == "uniform":
            return None
        probabilities = fixed_probabilities(probabilities, len(domains))
    elif isinstance(probabilities, Mapping):
        if set(probabilities) != set(domains):
            raise ValueError(f"probabilities must name exactly the domains {', '.join(domains)}")
        probabilities = [probabilities[domain] for domain in domains]
    if len(probabilities) != len(domains):
        raise ValueError(f"{len(probabilities)} probabilities were given for {len(domains)} domains")
    pairs = zip(domains, probabilities, strict=True)
    return {domain: positive_number(f"the probability of {domain!r}", p) for domain, p in pairs}
