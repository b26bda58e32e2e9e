"""Plots of a schedule, in a file or in a terminal: which domain arrives when."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tta_bench.streams.orders import STANDARD_ORDER
from tta_bench.streams.schedule import IntArray, Schedule

FloatArray = npt.NDArray[np.float64]

MAX_COLUMNS = 2000
"""Largest number of columns in a plot; in longer streams several steps share a column."""

PALETTE = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
    *("#7aa6d8", "#f5b971", "#84c77e", "#f0938f", "#c0a5dc"),
    *("#c29c8f", "#f3b8d9", "#b9b9b9", "#dcdc8a", "#99dae4"),
)


class _Look(NamedTuple):
    """How D domains are shown in L lanes."""

    lanes: list[str]  # names, in order of first arrival
    lane_of: IntArray  # (D,)
    colours: FloatArray  # (D, 3) red, green, blue in [0, 1]


def plot_timeline(
    schedule: Schedule,
    path: Path | str,
    title: str | None = None,
    labels: Mapping[str, npt.NDArray[Any]] | None = None,
) -> None:
    """Plot the stream: at the top the share of each domain in each batch, below it one lane per domain.

    With labels, a third panel shows how often each class arrives in each batch: labels that are correlated in time
    appear as dark runs, independent labels as an even grey.

    A lane is coloured where its domain is present. The severities of a corruption share a lane, higher ones being
    darker. A domain has the same colour in the plots of all streams over the same domains.

    Args:
        schedule: The stream.
        path: File to write; its extension decides the format.
        title: Title; by default kind, length and short fingerprint.
        labels: Class of every sample of each domain.
    """
    from matplotlib.figure import Figure  # slow to import, and only a picture needs it

    names, steps = _look(schedule.domains).lanes, len(schedule)
    lanes = len(names)
    classes = [] if labels is None else [1.6]
    figure = Figure(figsize=(11, 1.7 + 0.24 * lanes + sum(classes)), dpi=150, layout="constrained")
    top, bottom, *rest = figure.subplots(
        2 + len(classes), 1, sharex=True, height_ratios=(1, 0.3 * lanes + 0.4, *classes)
    )
    top.imshow(share_picture(schedule), aspect="auto", interpolation="nearest", extent=(0, steps, 0, 1))
    top.set(yticks=[], ylabel="share")
    heading = f"{schedule.kind}: {steps} batches, {schedule.num_samples} samples, {schedule.short}"
    top.set_title(title or heading, fontsize=10, loc="left")
    bottom.imshow(lane_picture(schedule), aspect="auto", interpolation="nearest", extent=(0, steps, lanes, 0))
    bottom.hlines(range(1, lanes), 0, steps, color="#dddddd", linewidth=0.5)
    bottom.set(yticks=np.arange(lanes) + 0.5, yticklabels=names, xlabel="batch")
    bottom.tick_params(axis="y", length=0, labelsize=8)
    for axes in rest:
        bottom.set(xlabel="")
        picture = class_shares(schedule, labels or {})
        axes.imshow(
            picture,
            aspect="auto",
            interpolation="nearest",
            cmap="Greys",
            vmin=0,
            vmax=0.6,
            extent=(0, steps, len(picture), 0),
        )
        axes.set(yticks=[], ylabel="class", xlabel="batch")
    figure.savefig(path)


def share_picture(schedule: Schedule) -> FloatArray:
    """Image (100, columns, 3) of red, green and blue in [0, 1] with the mean shares of each column stacked."""
    look, shares = _look(schedule.domains), _shares(schedule)
    sums = np.add.reduceat(shares, _column_starts(len(shares), min(len(shares), MAX_COLUMNS)))
    tops = np.cumsum(sums, axis=1) / sums.sum(axis=1, keepdims=True)  # (columns, D)
    heights = (np.arange(100) + 0.5) / 100
    domain = (tops[None] < heights[:, None, None]).sum(axis=2)
    picture: FloatArray = look.colours[np.minimum(domain, len(look.colours) - 1)]
    return picture


def lane_picture(schedule: Schedule) -> FloatArray:
    """Image (L, columns, 4): the colour of a lane's domains, opaque where the lane has a whole batch.

    A lane holds all severities of one corruption; lanes are in the order of their first arrival.
    """
    look, shares = _look(schedule.domains), _shares(schedule)
    starts = _column_starts(len(shares), min(len(shares), MAX_COLUMNS))
    member = (look.lane_of[:, None] == np.arange(len(look.lanes))).astype(float)  # (D, L)
    sums = np.add.reduceat(shares, starts)
    weights = sums[:, :, None] * member  # (columns, D, L)
    total = np.maximum(weights.sum(axis=1).T[..., None], 1e-12)  # (L, columns, 1)
    colours = np.einsum("cdl,dk->lck", weights, look.colours) / total
    # The largest share in a column, so that a visit of one batch is visible; its root, so that a small share is.
    opacity = np.sqrt(np.maximum.reduceat(shares @ member, starts).T[..., None])
    return np.concatenate([colours, opacity], axis=2).clip(0, 1)


def class_shares(schedule: Schedule, labels: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
    """Share of each of K classes in each column of the plot, (K, columns); a column sums to 1, to 0 without labels.

    Args:
        schedule: The stream.
        labels: Class of every sample of each domain, negative where one has none.
    """
    arrived = np.empty(schedule.num_samples, dtype=np.int64)
    for number, name in enumerate(schedule.domains):
        own = schedule.domain_ids == number
        arrived[own] = np.asarray(labels[name])[schedule.indices[own]]
    columns = min(len(schedule), MAX_COLUMNS)
    column = np.repeat(np.arange(len(schedule)) * columns // len(schedule), np.diff(schedule.offsets))
    known = arrived >= 0
    counts = np.zeros((max(int(arrived.max()), 0) + 1, columns))
    np.add.at(counts, (arrived[known], column[known]), 1)
    shares: FloatArray = counts / np.maximum(counts.sum(axis=0), 1)
    return shares


def timeline_text(schedule: Schedule, width: int = 80, *, coloured: bool = True) -> str:
    """Two lines for a terminal: a letter for the most frequent domain in each column, and the legend.

    Args:
        schedule: The stream.
        width: Width of the first line in characters.
        coloured: Add colours as rich console markup; False gives plain text.

    Example:
        >>> stream = Schedule("demo", {}, ("fog", "snow"), [0, 0, 1, 0], [0, 1, 0, 2], [0, 1, 2, 3, 4])
        >>> print(timeline_text(stream, 8, coloured=False))
        aaaabbaa
        a=fog  b=snow
    """
    look = _look(schedule.domains)
    letters = dict(zip(range(len(look.lanes)), string.ascii_letters, strict=False))

    def cell(domain: int) -> str:
        letter = letters.get(int(look.lane_of[domain]), "?")
        red, green, blue = (255 * look.colours[domain]).astype(int)
        return f"[black on #{red:02x}{green:02x}{blue:02x}]{letter}[/]" if coloured else letter

    prevailing = np.add.reduceat(_shares(schedule), _column_starts(len(schedule), width)).argmax(axis=1)
    # A lane is represented by its domain that arrives last, which for rising severities has the strongest colour.
    shown = [int(np.flatnonzero(look.lane_of == lane)[-1]) for lane in range(len(look.lanes))]
    names = [name.replace("[", "\\[") if coloured else name for name in look.lanes]
    key = "  ".join(f"{cell(domain)}={name}" for domain, name in zip(shown, names, strict=True))
    return "".join(map(cell, prevailing.tolist())) + "\n" + key


def _look(domains: tuple[str, ...]) -> _Look:
    families = [domain.rpartition("/")[0] or domain for domain in domains]
    if len(set(families)) == len(domains):
        families = list(domains)  # one severity each: keep it in the name
    lanes = list(dict.fromkeys(families))
    ranked = sorted(lanes, key=_rank)
    colours = [_shade(families, domains, i, ranked.index(families[i])) for i in range(len(domains))]
    return _Look(lanes, np.array([lanes.index(family) for family in families]), np.array(colours))


def _rank(lane: str) -> tuple[int, str]:
    """Known corruptions in their usual order, others by name, so that colours do not depend on the order of arrival."""
    corruption = lane.partition("/")[0]
    known = corruption in STANDARD_ORDER
    return (STANDARD_ORDER.index(corruption) if known else len(STANDARD_ORDER), lane)


def _shade(families: list[str], domains: tuple[str, ...], index: int, rank: int) -> list[float]:
    """The colour of a domain: that of its family, paler for lower severities."""
    members = sorted(d for d, family in zip(domains, families, strict=True) if family == families[index])
    strength = (members.index(domains[index]) + 1) / len(members)
    code = PALETTE[rank % len(PALETTE)]
    return [1 - strength * (1 - int(code[k : k + 2], 16) / 255) for k in (1, 3, 5)]


def _shares(schedule: Schedule) -> FloatArray:
    """Share of each domain in each step, (T, D); rows sum to 1."""
    sizes, domains = np.diff(schedule.offsets), len(schedule.domains)
    cell = np.repeat(np.arange(len(sizes)) * domains, sizes) + schedule.domain_ids
    counts = np.bincount(cell, minlength=len(sizes) * domains).reshape(-1, domains)
    shares: FloatArray = counts / sizes[:, None]
    return shares


def _column_starts(steps: int, columns: int) -> IntArray:
    """First step of each column; if there are more columns than steps, a step spans several columns."""
    return np.arange(columns) * steps // columns
