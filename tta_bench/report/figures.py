"""The figures of a group for papers and slides, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tta_bench.files import writing
from tta_bench.report.figure_style import HEIGHT, SAVED, STYLE, WIDTH, Mark, add_legend, empty_figure, name_points
from tta_bench.report.groups import Entry, Group
from tta_bench.report.looks import Look, looks_of
from tta_bench.report.measures import COST, best_first, domain_measures, mean_measure
from tta_bench.report.names import entry_name, group_slugs
from tta_bench.report.runs import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]
Looks = Mapping[Entry, Look]
MOST_NUMBERS = 10
"""Largest number of classes for which the cells of a confusion matrix hold their numbers."""
MOST_NAMES = 25
"""Largest number of classes that are named at the axes."""


class NothingToDrawError(ValueError):
    """A group has no data for a figure; the message says what is missing."""


@dataclass(frozen=True)
class Band:
    """Curves of several runs, averaged.

    Attributes:
        x: Batches, (P,).
        mean: Mean over the runs, (P,).
        std: Standard deviation over the runs (divisor n - 1), (P,); zero for a single run.
    """

    x: Array
    mean: Array
    std: Array


def average(curves: Sequence[Sequence[tuple[float, float]]]) -> Band:
    """Average curves at the points of the shortest one that all of them cover.

    Streams of one setting may differ in length with their seed, and the points of their curves then lie at different
    batches: the longer curves are interpolated linearly.

    Args:
        curves: At least one; each has points (batch, value) in order.

    Example:
        >>> band = average([[(1, 10.0), (2, 20.0)], [(1, 30.0), (2, 20.0), (3, 70.0)]])
        >>> band.mean.tolist(), band.std.round(2).tolist()
        ([20.0, 20.0], [14.14, 0.0])
    """
    arrays = [np.array(curve, dtype=float) for curve in curves]
    shortest = min(arrays, key=lambda points: points[-1, 0])[:, 0]
    x = shortest[shortest >= max(points[0, 0] for points in arrays)]
    values = np.stack([np.interp(x, points[:, 0], points[:, 1]) for points in arrays])
    std = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(x))
    return Band(x, values.mean(axis=0), std)


def error_over_stream(group: Group, looks: Looks) -> Figure:
    """Running error or mean IoU against the batch: mean over the streams, with a band of one standard deviation."""
    if group.segments:
        return _curves(group, looks, "running_iou", "Mean IoU so far (%)")
    return _curves(group, looks, "running_error", "Error so far (%)")


def coreset_growth(group: Group, looks: Looks) -> Figure:
    """Number of elements in the coreset against the batch, averaged as above."""
    figure = _curves(group, looks, "coreset_size", "Elements in the coreset")
    figure.axes[0].set_ylim(bottom=0)
    return figure


def error_by_domain(group: Group, looks: Looks) -> Figure:
    """Mean error or IoU in each domain with its standard deviation over the streams, methods side by side."""
    measures, shown = domain_measures(group), _shown(group, looks)
    if not measures or not shown:
        raise NothingToDrawError("no run has finished")
    figure, (ax,) = empty_figure(max(WIDTH, 0.45 * len(measures)))
    for k, entry in enumerate(shown):
        known = [(i, found) for i, measure in enumerate(measures) if (found := entry.spread(measure.value))]
        x = [i + 0.7 * ((k + 0.5) / len(shown) - 0.5) for i, _ in known]
        means, stds = [found.mean for _, found in known], [found.std or 0.0 for _, found in known]
        ax.errorbar(x, means, stds, label=_label(group, entry), **Mark.of(looks[entry]).points)
    for i in range(1, len(measures)):
        ax.axvline(i - 0.5, color="0.9", linewidth=0.5, zorder=0)
    names = [measure.title.replace("_", " ") for measure in measures]
    ax.set_xticks(range(len(measures)), names, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.5, len(measures) - 0.5)
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel("Mean IoU (%)" if group.segments else "Error (%)")
    add_legend(figure)
    return figure


def cost_against_error(group: Group, looks: Looks) -> Figure:
    """Mean error or IoU against forward and backward passes per sample, each method named beside its point."""
    measure, points = mean_measure(group), []
    for entry in best_first(group):
        score, forward, backward = (entry.spread(m.value) for m in (measure, COST[0], COST[1]))
        if score and forward and backward:
            points.append((entry, forward.mean + backward.mean, score))
    if not points:
        raise NothingToDrawError("no run has finished")
    figure, (ax,) = empty_figure(height=1.25 * HEIGHT)
    for entry, cost, score in points:
        mark = Mark.of(looks[entry])
        ax.errorbar([cost], [score.mean], [score.std or 0.0], label=_label(group, entry), **mark.points)
    costs = [cost for _, cost, _ in points]
    if min(costs) > 0 and max(costs) > 20 * min(costs):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    ax.margins(x=0.12)
    ax.grid(axis="x")
    ax.set_xlabel("Forward and backward passes per sample")
    ax.set_ylabel(f"{measure.title} (%)")
    figure.draw_without_rendering()  # gives the panel its place, which the names depend on
    names = [_label(group, entry) for entry, *_ in points]
    colours = [Mark.of(looks[entry]).colour if looks[entry].stands_out else "0.4" for entry, *_ in points]
    name_points(ax, [(cost, score.mean) for _, cost, score in points], names, colours)
    return figure


def reliability(group: Group, looks: Looks) -> Figure:
    """Accuracy against confidence in the bins of the calibration error, over the samples of all streams."""
    figure, (ax,) = empty_figure(0.7 * WIDTH, 0.75 * WIDTH)
    ax.plot([0, 100], [0, 100], color="0.6", linestyle=":")
    for entry in _shown(group, looks):
        x, y = reliability_of(entry.counted.values())
        mark = Mark.of(looks[entry])
        if len(x):
            ax.plot(x, y, label=_label(group, entry), marker=mark.marker, **mark.line)
    if len(ax.lines) == 1:
        raise NothingToDrawError("no finished run has counted its confidences")
    ax.set(xlim=(0, 100), ylim=(0, 100), xlabel="Confidence (%)", ylabel="Accuracy (%)", aspect="equal")
    ax.grid(axis="x")
    add_legend(figure)
    return figure


def reliability_of(runs: Iterable[RunRecord]) -> tuple[Array, Array]:
    """Mean confidence and accuracy in percent of each bin that has samples, over all samples of the runs.

    Source: Guo et al., ICML 2017, Eq. 1 and 2, with 15 bins.
    """
    total: dict[int, Array] = {}
    for run in runs:
        for number, counts in run.trace.calibration.items():
            total[number] = total.get(number, np.zeros(3)) + np.array(counts, dtype=float)
    bins = np.array([total[number] for number in sorted(total) if total[number][0]]).reshape(-1, 3)
    return 100 * bins[:, 1] / bins[:, 0], 100 * bins[:, 2] / bins[:, 0]


def confusion(group: Group, looks: Looks) -> Figure:
    """Predicted against true classes in percent of each true class: the baseline, and the best other method."""
    known = [(entry, counts) for entry in best_first(group) if (counts := confusion_of(entry.counted.values())).size]
    base = [pair for pair in known if pair[0] is group.baseline_entry]
    chosen = [*base, *[pair for pair in known if pair not in base][:1]]
    if not chosen:
        raise NothingToDrawError("it needs predictions per image: repeat the runs with save_predictions=csv")
    names = _class_names(group, max(len(counts) for _, counts in chosen))
    figure, axes = empty_figure(WIDTH if len(chosen) > 1 else 0.6 * WIDTH, 0.55 * WIDTH, len(chosen))
    for ax, (entry, counts) in zip(axes, chosen, strict=True):
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
        for label, predicted in np.ndindex(counts.shape) if len(counts) <= MOST_NUMBERS else ():
            share = shares[label, predicted]
            colour = "white" if share > 60 else "0.2"
            ax.text(predicted, label, f"{share:.0f}", ha="center", va="center", fontsize=6, color=colour)
        if len(counts) <= MOST_NAMES:
            ax.set_xticks(range(len(counts)), names[: len(counts)], rotation=90, fontsize=6)
            ax.set_yticks(range(len(counts)), names[: len(counts)], fontsize=6)
        ax.set(title=_label(group, entry), xlabel="Predicted class")
        ax.grid(visible=False)
    axes[0].set_ylabel("True class")
    figure.colorbar(image, ax=axes, shrink=0.8, label="Share of the true class (%)")
    return figure


def confusion_of(runs: Iterable[RunRecord]) -> Array:
    """Samples, or pixels, by true and predicted class (K, K), over all runs; empty if they are not known."""
    counts: dict[tuple[int, int], int] = {}
    for run in runs:
        for pair, n in run.confusion.items():
            counts[pair] = counts.get(pair, 0) + n
    size = 1 + max((max(pair) for pair in counts), default=-1)
    matrix = np.zeros((size, size))
    for pair, n in counts.items():
        matrix[pair] = n
    return matrix


FIGURES: Mapping[str, Callable[[Group, Looks], Figure]] = {
    "error_over_stream": error_over_stream,
    "error_by_domain": error_by_domain,
    "cost_against_error": cost_against_error,
    "coreset_growth": coreset_growth,
    "reliability": reliability,
    "confusion": confusion,
}


def write_figures(groups: Sequence[Group], folder: Path) -> list[str]:
    """Write each figure of each group as PDF, SVG and PNG to ``<folder>/<data set>-<setting>-<model>/``.

    The same runs give the same bytes, without dates. Text is text in embedded fonts in a PDF, and drawn in an SVG.

    Returns:
        A sentence for each figure that could not be drawn.

    Raises:
        WriteError: If a file cannot be written.
    """
    import matplotlib as mpl

    looks, untold = looks_of(groups), []
    style: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"} | dict(STYLE)
    for group, name in zip(groups, group_slugs(groups), strict=True):
        place = folder / name
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        for kind, draw in FIGURES.items():
            with mpl.rc_context(style):
                try:
                    figure = draw(group, looks)
                except NothingToDrawError as reason:
                    untold.append(f"{name} has no figure {kind}: {reason}")
                    continue
                for suffix, metadata in SAVED.items():
                    path = place / f"{kind}.{suffix}"
                    with writing(path):
                        figure.savefig(path, metadata=metadata)
    return untold


def _shown(group: Group, looks: Looks) -> list[Entry]:
    """The baseline and the best entries, which have colours of their own."""
    return [entry for entry in _baseline_first(group) if looks[entry].stands_out and entry.counted]


def _baseline_first(group: Group) -> list[Entry]:
    return sorted(best_first(group), key=lambda entry: entry is not group.baseline_entry)


def _label(group: Group, entry: Entry) -> str:
    """Its name, and why it is not ranked."""
    if group.is_ranked(entry):
        return entry_name(entry)
    why = f"{len(entry.counted)} of {len(group.streams)} streams" if entry.is_sound else "inconsistent files"
    return f"{entry_name(entry)} [{why}]"


def _curves(group: Group, looks: Looks, name: str, title: str) -> Figure:
    figure, (ax,) = empty_figure()
    others: list[Any] = []
    for entry in _baseline_first(group):
        found = [run.trace.curves[name] for run in entry.counted.values() if name in run.trace.curves]
        if not found:
            continue
        band, mark, stands_out = average(found), Mark.of(looks[entry]), looks[entry].stands_out
        (line,) = ax.plot(band.x, band.mean, label=_label(group, entry), **mark.line)
        if not stands_out:
            others.append(line)
        elif len(found) > 1:
            ends = (band.mean - band.std, band.mean + band.std)
            ax.fill_between(band.x, *ends, color=mark.colour, alpha=0.18, linewidth=0, zorder=mark.order - 0.5)
    if not ax.lines:
        raise NothingToDrawError(f"no finished run has the curve {name}")
    for line in others[1:]:
        line.set_label(f"_{line.get_label()}")
    if others:
        others[0].set_label(f"{len(others)} more" if len(others) > 1 else others[0].get_label())
    ax.set(xlabel="Batch of the stream", ylabel=title)
    ax.margins(x=0)
    add_legend(figure)
    return figure


def _class_names(group: Group, number: int) -> list[str]:
    """Names of classes as in results of segmentation, else their numbers."""
    named = next((list(run.result["class_iou"]) for run in group.runs if run.result.get("class_iou")), [])
    return [named[k] if k < len(named) else str(k) for k in range(number)]
