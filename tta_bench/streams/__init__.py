"""Streams: which sample of which domain arrives when. They are made before any method or image exists."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from tta_bench.streams.as_given import Arrivals, as_given
from tta_bench.streams.assemble import checked_labels, checked_sizes, rng_for, whole_number
from tta_bench.streams.kinds import blurred, cdc, cdc_2d, csc, gradual, mixed, ptta
from tta_bench.streams.orders import COTTA_10_ORDERS, NAMED_ORDERS, STANDARD_ORDER, ordered
from tta_bench.streams.schedule import IntArray, Schedule, Segment, Step, repeated
from tta_bench.streams.timeline import plot_timeline, timeline_text
from tta_bench.suggestions import did_you_mean

__all__ = [
    "COTTA_10_ORDERS",
    "KINDS",
    "NAMED_ORDERS",
    "PRESETS",
    "STANDARD_ORDER",
    "Arrivals",
    "Schedule",
    "Segment",
    "Step",
    "as_given",
    "blurred",
    "cdc",
    "cdc_2d",
    "csc",
    "gradual",
    "make_stream",
    "mixed",
    "plot_timeline",
    "ptta",
    "repeated",
    "rng_for",
    "timeline_text",
]

KINDS: dict[str, Callable[..., Schedule]] = {
    "csc": csc,
    "cdc": cdc,
    "cdc_2d": cdc_2d,
    "ptta": ptta,
    "gradual": gradual,
    "blurred": blurred,
    "mixed": mixed,
    "as_given": as_given,
}
NOT_SETTINGS = ("sizes", "labels", "seed", "arrivals")
"""Arguments of these functions that come from the data set and the run."""
# Settings that are one of the kinds above with other default values.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "repeating": ("csc", {"rounds": 10}),  # CoTTA's long-term experiment
    "batch_size_1": ("csc", {"batch_size": 1}),
    "cdc_official": ("cdc", {"rng": "legacy"}),  # the released code's order of batches; it uses seed=1
}


def make_stream(
    kind: str,
    *,
    sizes: Mapping[str, int] | None = None,
    labels: Mapping[str, Any] | None = None,
    arrivals: tuple[IntArray, IntArray, npt.NDArray[Any] | None] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    order: str | Sequence[str] | None = None,
    rounds: int | None = None,
    **params: Any,
) -> Schedule:
    """Make the schedule of a setting.

    Args:
        kind: A name in ``KINDS`` or ``PRESETS``.
        sizes: Samples per domain, in order of arrival. Inferred from ``labels`` if these are given.
        labels: Class of every sample of each domain, (N,) integers, -1 of one without; required by ``"ptta"``.
        arrivals: The data set's own order as in :class:`~.as_given.Arrivals`, which only ``"as_given"`` keeps.
        batch_size: Samples per batch (B); None uses the setting's default, 64 unless ``PRESETS`` says otherwise.
        seed: Seed of all random draws.
        order: ``"standard"``, ``"cotta_0"`` to ``"cotta_9"``, or a list of all domains in the desired order.
        rounds: How many times the whole stream is repeated, always in the same order; None uses the setting's
            default, usually 1.
        params: Further arguments of the setting's function, such as ``delta`` of :func:`~.kinds.cdc`.

    Raises:
        ValueError: If the setting or one of its arguments is unknown, missing or out of range.

    Example:
        >>> stream = make_stream("cdc", sizes={"fog": 300, "snow": 300}, delta=1.0)
        >>> len(stream), stream.num_samples
        (10, 600)
        >>> len(make_stream("repeating", sizes={"fog": 300, "snow": 300}))  # ten rounds of csc
        100
        >>> make_stream("blured", sizes={"fog": 300})
        Traceback (most recent call last):
        ValueError: unknown stream 'blured'; did you mean 'blurred'? choose from: csc, cdc, ...
    """
    if kind not in KINDS and kind not in PRESETS:
        raise ValueError(_unknown("stream", kind, [*KINDS, *PRESETS]))
    kind, preset = PRESETS.get(kind, (kind, {}))
    _check_params(kind, params)
    given = {"batch_size": batch_size, "rounds": rounds}
    params = {**preset, **{key: value for key, value in given.items() if value is not None}, **params}
    rounds = whole_number("rounds", params.pop("rounds", 1), least=1)
    data = _data("labels" in inspect.signature(KINDS[kind]).parameters, kind, sizes, labels)
    if kind == "as_given":
        if order is not None:
            raise ValueError("as_given keeps the order of the data set: leave order out, or choose another setting")
        params["arrivals"] = None if arrivals is None else Arrivals(*arrivals)
    if order is not None:
        data = {domain: data[domain] for domain in ordered(data, order)}
    schedule = KINDS[kind](data, seed=seed, **params)
    return schedule if rounds == 1 else repeated(schedule, rounds)


def _data(
    by_label: bool, kind: str, sizes: Mapping[str, int] | None, labels: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The first argument of the setting's function: the labels or the sizes of the domains."""
    if labels is None:
        if sizes is None or by_label:
            raise ValueError(f"the stream {kind!r} needs {'labels' if by_label else 'sizes'}")
        return checked_sizes(sizes)
    arrays = checked_labels(labels)
    counted = {domain: len(array) for domain, array in arrays.items()}
    if sizes is not None and dict(sizes) != counted:
        raise ValueError(f"sizes {dict(sizes)} contradict the labels, which have {counted}")
    return arrays if by_label else counted


def _check_params(kind: str, params: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(KINDS[kind]).parameters if name not in NOT_SETTINGS]
    for name in params:
        if name not in known:
            raise ValueError(_unknown(f"parameter of the stream {kind!r}:", name, known))


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"unknown {what} {name!r}{did_you_mean(name, known)}"
