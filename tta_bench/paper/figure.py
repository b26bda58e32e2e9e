"""Figures of reproduced tables: bars per row, lines over the columns, or curves over the batches."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tta_bench.paper.measures import MEASURES
from tta_bench.paper.reproduce import Reproduction
from tta_bench.paper.tables import PaperColumn, PaperRow

Panel = Callable[[Any], None]  # draws into matplotlib's Axes

PER_LINE = 3


def draw(done: Reproduction, path: Path, title: str) -> None:
    """Draw a reproduced table.

    The paper's numbers are drawn beside ours only if the data are the paper's.

    Args:
        done: The table.
        path: Output file; its suffix determines the format.
        title: Title of the figure.
    """
    from matplotlib.figure import Figure  # slow to import, and only needed for figures

    table = done.plan.table
    panels = {"bars": _bar_panels, "lines": _line_panels, "curves": _curve_panels}[table.draw](done)
    across, down = min(PER_LINE, len(panels)), -(-len(panels) // PER_LINE)
    width = max(6.5, 4.2 * across)
    height = 0.28 * len(table.rows) + 1.4 if table.draw == "bars" else 3.6
    figure = Figure(figsize=(width, height * down + 0.7), dpi=150, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, ax in zip(panels, axes, strict=False):
        panel(ax)
        ax.tick_params(labelsize=8)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.suptitle("\n".join(textwrap.wrap(title, int(13 * width))), fontsize=9)
    figure.savefig(path)


def _bar_panels(done: Reproduction) -> list[Panel]:
    """One panel per column, except for domains, and for gains, which are redundant with the error."""
    row, measure_of = done.plan.table.rows[0], done.plan.table.measure_of
    return [
        partial(_bars, done, c)
        for c in done.columns
        if c.domain is None and measure_of(row, c) not in ("gain", "iou_gain")
    ]


def _bars(done: Reproduction, column: PaperColumn, ax: Any) -> None:
    rows = done.plan.table.rows
    places, values = _known(_ours(done, row, column) for row in rows)
    ax.barh(places, values, color="#4c78a8", height=0.6)
    places, values = _known(_paper(done, row, column) for row in rows)
    if places:
        ax.plot(values, places, "D", color="#e45756", markersize=5, label="paper")
        ax.legend(fontsize=7)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top
    ax.set_xlabel(_label(done, rows[0], column), fontsize=8)
    ax.set_title(column.name, fontsize=9)


def _line_panels(done: Reproduction) -> list[Panel]:
    """One panel per measure, with one line per row over the columns that are single settings."""
    table = done.plan.table
    columns = [column for column in done.columns if not column.over]
    by_measure: dict[str, list[PaperRow]] = {}
    for row in table.rows:
        by_measure.setdefault(table.measure_of(row, columns[0]), []).append(row)
    return [partial(_lines, done, rows, columns) for rows in by_measure.values()]


def _lines(done: Reproduction, rows: Sequence[PaperRow], columns: Sequence[PaperColumn], ax: Any) -> None:
    for k, row in enumerate(rows):
        ax.plot(*_known(_ours(done, row, c) for c in columns), "o-", color=f"C{k}", markersize=4, label=row.name)
        paper = _known(_paper(done, row, c) for c in columns)
        ax.plot(*paper, "D--", color=f"C{k}", markersize=6, markerfacecolor="none")
    ax.set_xticks(range(len(columns)), [column.name for column in columns])
    ax.set_xlabel(done.plan.table.x + ("" if done.is_substitute else " (diamonds: paper)"), fontsize=8)
    ax.set_ylabel(_label(done, rows[0], columns[0]), fontsize=8)
    if len(rows) > 1:
        ax.legend(fontsize=7)


def _curve_panels(done: Reproduction) -> list[Panel]:
    """One panel with the curve of the first run of every row."""
    return [partial(_curves, done)]


def _curves(done: Reproduction, ax: Any) -> None:
    table, column = done.plan.table, done.columns[-1]
    for row in table.rows:
        if done.cells[row.name, column.name].failed is None:
            measure = table.measure_of(row, column)
            curve = done.run(row, column).trace.curves.get(measure, [])
            style = "steps-pre" if measure == "coreset_size" else "default"
            ax.plot([x for x, _ in curve], [y for _, y in curve], label=row.name, drawstyle=style, linewidth=1.2)
    if ax.lines:
        ax.legend(fontsize=7)
    ax.set_xlabel("batch", fontsize=8)
    ax.set_ylabel(_label(done, table.rows[0], column), fontsize=8)


def _ours(done: Reproduction, row: PaperRow, column: PaperColumn) -> float | None:
    found = done.cells[row.name, column.name].ours
    return None if found is None else found.mean


def _paper(done: Reproduction, row: PaperRow, column: PaperColumn) -> float | None:
    return None if done.is_substitute else done.cells[row.name, column.name].paper


def _known(values: Iterable[float | None]) -> tuple[list[int], list[float]]:
    """Positions and values of the known numbers."""
    known = [(k, x) for k, x in enumerate(values) if x is not None]
    return [k for k, _ in known], [x for _, x in known]


def _label(done: Reproduction, row: PaperRow, column: PaperColumn) -> str:
    return MEASURES[done.plan.table.measure_of(row, column)].label
