"""Comparison tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tta_bench.report.groups import SOURCE, Entry, Group, Value, group_runs
from tta_bench.report.intervals import Spread
from tta_bench.report.measures import ESTIMATES, PIXEL_ERROR, Measure, best_first, column_measures, mean_measure
from tta_bench.report.runs import Result, RunRecord

UNKNOWN = "–"
UNLIMITED = 100_000
"""Width of a terminal in which everything fits."""

T = TypeVar("T")


def comparison_tables(results: Sequence[Result], baseline: str = SOURCE) -> list[GroupTable]:
    """Create one table per protocol, with mean and standard deviation over seeds or orders.

    Runs with different data, settings or weights get separate tables; they are never averaged.

    Args:
        results: Contents of ``result.json`` files.
        baseline: Baseline of the gains, see :func:`tta_bench.report.groups.group_runs`.

    Raises:
        ValueError: If the baseline is unknown.
    """
    return [GroupTable(group) for group in group_runs(map(RunRecord, results), baseline)]


class GroupTable:
    """Table of one protocol, with domains as rows and methods as columns; only methods as rows if that is too wide.

    Args:
        group: The runs.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Choose the layout by the width of the console."""
        across = methods_across(self.group)
        natural = Measurement.get(console, options.update(width=UNLIMITED), across).maximum
        yield across if natural <= options.max_width else methods_down(self.group)
        for told in self.group.notices:
            yield Text(f"Note: {told}", style="yellow")
        for told in self.group.disagreements:
            yield Text(f"Inconsistent files: {told}", style="bold red")


def _empty_table(group: Group, caption: str = "") -> Table:
    told = "mean IoU in %, higher is better" if group.segments else "error in %, lower is better"
    told += "; mean ± standard deviation over seeds" if _has_several(group) else ""
    title = f"{escape(group.name)} · {escape(group.in_words())}" + (f"\n{escape(group.note)}" if group.note else "")
    return Table(title=title, caption=f"{told}{caption}")


def _has_several(group: Group) -> bool:
    return any(len(entry.counted) > 1 for entry in group.entries)


def _name(entry: Entry) -> str:
    notes = ", ".join(entry.notes)
    return escape(f"{entry.label} ({notes})" if notes else entry.label)


def methods_across(group: Group) -> Table:
    """Create a table with domains as rows and methods as columns."""
    several, table = _has_several(group), _empty_table(group)
    table.add_column("domain", no_wrap=True)
    for entry in group.entries:
        table.add_column(_name(entry), justify="right")
    for measure in column_measures(group):
        _add_means(table, measure.about, measure, group)
    table.add_section()
    _add_means(table, "mean", mean_measure(group), group, "bold")
    _add_gain(table, group)
    table.add_section()
    if group.segments:
        _add_means(table, "pixel error", PIXEL_ERROR, group)
    for estimate in ESTIMATES[:3]:  # without labels, these are what there is
        if estimate.is_known([group]):
            _add_means(table, estimate.title, estimate, group)
    _add(table, "forward / sample", group, _number("forward_per_sample"), "{:.2f}")
    _add(table, "backward / sample", group, _number("backward_per_sample"), "{:.2f}")
    _add(table, "coreset size", group, _number("coreset_size"), "{:.1f}" if several else "{:.0f}")
    _add(table, "seconds", group, _number("seconds"), "{:.1f}")
    return table


def methods_down(group: Group) -> Table:
    """Create a table with one row per method, sorted by mean, unranked ones last, without domains."""
    table = _empty_table(group, "; domains: tta-bench report --output report.html")
    form = "{:.1f}" if _has_several(group) else "{:.0f}"
    costs = {"FP": "forward_per_sample", "BP": "backward_per_sample", "coreset": "coreset_size"}
    table.add_column("method", overflow="fold")
    for header in ("mean", "gain", *costs, "seconds"):
        table.add_column(header, justify="right", no_wrap=True)
    measure = mean_measure(group)
    ranks = measure.ranks(group)
    for entry in best_first(group):
        gain = group.gain(entry)
        table.add_row(
            _name(entry),
            _mean(entry, measure, ranks),
            UNKNOWN if gain is None else f"{gain.mean:+z.1f}",
            *(
                _text(entry.spread(_number(key)), form if header == "coreset" else "{:.2f}")
                for header, key in costs.items()
            ),
            _text(entry.spread(_number("seconds")), "{:.1f}"),
        )
    return table


def _number(key: str) -> Value:
    return lambda run: run.number(key)


def _text(found: Spread | None, form: str) -> str:
    return UNKNOWN if found is None else form.format(found.mean)


def _mean(entry: Entry, measure: Measure, ranks: Mapping[Entry, int]) -> str:
    found = entry.spread(measure.value)
    if found is None:
        return UNKNOWN
    text = f"{found.mean:.1f}" + (f" ± {found.std:.1f}" if found.std is not None else "")
    return f"[bold green]{text}[/]" if ranks.get(entry) == 1 else text


def _add_means(table: Table, label: str, measure: Measure, group: Group, style: str = "") -> None:
    ranks = measure.ranks(group)
    table.add_row(escape(label), *(_mean(entry, measure, ranks) for entry in group.entries), style=style)


def _add_gain(table: Table, group: Group) -> None:
    gains = [group.gain(entry) for entry in group.entries]
    _row(table, f"gain over {group.baseline}", gains, lambda gain: f"{gain.mean:+z.1f}")
    intervals = [gain.interval if gain else None for gain in gains]
    if any(intervals):
        _row(table, "  95 % interval", intervals, lambda ends: f"{ends[0]:+z.1f} to {ends[1]:+z.1f}")


def _add(table: Table, label: str, group: Group, value: Value, form: str) -> None:
    _row(table, label, [entry.spread(value) for entry in group.entries], lambda found: form.format(found.mean))


def _row(table: Table, label: str, found: Sequence[T | None], text: Callable[[T], str]) -> None:
    table.add_row(escape(label), *(UNKNOWN if one is None else text(one) for one in found))
