"""Methods side by side in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.markup import escape
from rich.table import Table

from tta_bench.report.groups import SOURCE, Group, Value, group_runs
from tta_bench.report.measures import PIXEL_ERROR, Measure, column_measures, mean_measure
from tta_bench.report.runs import Result, Run

UNKNOWN = "–"

T = TypeVar("T")


def comparison_tables(results: Sequence[Result], baseline: str = SOURCE) -> list[Table]:
    """One table per protocol: domains down, methods across, mean and standard deviation over seeds or orders.

    Runs on different data, settings or weights get tables of their own; they are never averaged.

    Args:
        results: Contents of ``result.json`` files.
        baseline: What the gain is over, see :func:`tta_bench.report.groups.group_runs`.

    Raises:
        ValueError: If there is no such baseline.
    """
    return [group_table(group) for group in group_runs(map(Run, results), baseline)]


def group_table(group: Group) -> Table:
    """The table of one protocol."""
    several = any(len(entry.counted) > 1 for entry in group.entries)
    table = Table(
        title=f"{escape(group.name)} · {escape(group.in_words())}" + (f"\n{escape(group.note)}" if group.note else ""),
        caption=("mean IoU in %, higher is better" if group.segments else "error in %, lower is better")
        + ("; mean ± standard deviation over seeds" if several else ""),
    )
    table.add_column("domain", no_wrap=True)
    for entry in group.entries:
        notes = ", ".join(entry.notes)
        table.add_column(escape(f"{entry.label} ({notes})" if notes else entry.label), justify="right")
    for measure in column_measures(group):
        _add_means(table, measure.about, measure, group)
    table.add_section()
    _add_means(table, "mean", mean_measure(group), group, "bold")
    _add_gain(table, group)
    table.add_section()
    if group.segments:
        _add_means(table, "pixel error", PIXEL_ERROR, group)
    _add(table, "forward / sample", group, lambda run: run.number("forward_per_sample"), "{:.2f}")
    _add(table, "backward / sample", group, lambda run: run.number("backward_per_sample"), "{:.2f}")
    _add(table, "coreset size", group, lambda run: run.number("coreset_size"), "{:.1f}" if several else "{:.0f}")
    _add(table, "seconds", group, lambda run: run.number("seconds"), "{:.1f}")
    return table


def _add_means(table: Table, label: str, measure: Measure, group: Group, style: str = "") -> None:
    ranks = measure.ranks(group)
    cells = []
    for entry in group.entries:
        found = entry.spread(measure.value)
        text = (
            UNKNOWN if found is None else f"{found.mean:.1f}" + (f" ± {found.std:.1f}" if found.std is not None else "")
        )
        cells.append(f"[bold green]{text}[/]" if ranks.get(entry) == 1 else text)
    table.add_row(escape(label), *cells, style=style)


def _add_gain(table: Table, group: Group) -> None:
    gains = [group.gain(entry) for entry in group.entries]
    _row(table, f"gain over {group.baseline}", gains, lambda gain: f"{gain.mean:+.1f}")
    intervals = [gain.interval if gain else None for gain in gains]
    if any(intervals):
        _row(table, "  95 % interval", intervals, lambda ends: f"{ends[0]:+.1f} to {ends[1]:+.1f}")


def _add(table: Table, label: str, group: Group, value: Value, form: str) -> None:
    _row(table, label, [entry.spread(value) for entry in group.entries], lambda found: form.format(found.mean))


def _row(table: Table, label: str, found: Sequence[T | None], text: Callable[[T], str]) -> None:
    table.add_row(escape(label), *(UNKNOWN if one is None else text(one) for one in found))
