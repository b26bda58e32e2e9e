"""Tables in GitHub's Markdown, with methods as rows and domains as columns."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from tta_bench.report.groups import Entry, Group
from tta_bench.report.measures import COST, Measure, column_measures, extra_measures, has_collapsed, mean_measure
from tta_bench.report.table import UNKNOWN

MARKS = "**best**, *second best* of the methods that finished the same streams."


def markdown_report(groups: Sequence[Group]) -> str:
    """Format all groups, each with a table of errors or IoU and a table of cost and further measures."""
    return "\n\n".join(_section(group) for group in groups) + "\n"


def _section(group: Group) -> str:
    note = f"\n\nOnly this table: {escape(group.note)}" if group.note else ""
    scores = [*column_measures(group), mean_measure(group)]
    others = [measure for measure in (*COST, *extra_measures(group)) if measure.is_known([group])]
    legend = f"{'Mean IoU in %, higher' if group.segments else 'Error in %, lower'} is better; {MARKS}"
    gain = [f"Gain over {escape(group.baseline)} (95 % interval)"]
    several = max((len(entry.counted) for entry in group.entries), default=0) > 1
    spread = " Mean ± standard deviation over the streams." if several else ""
    return "\n\n".join(
        [
            f"## {escape(group.name)}\n\n{escape(group.in_words())}{note}\n\n{legend}{spread}",
            _table(group, scores, gain),
            _table(group, others, []),
            *(f"**Note:** {escape(told)}" for told in group.notices),
            *(f"**Inconsistent files:** {escape(told)}" for told in group.disagreements),
        ]
    )


def _table(group: Group, measures: Sequence[Measure], more: Sequence[str]) -> str:
    heads = ["Method", *(_head(measure) for measure in measures), *more]
    ranks = {measure: measure.ranks(group) for measure in measures}
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for entry in group.baseline_first:
        cells = [_cell(entry, measure, own.get(entry)) for measure, own in ranks.items()]
        lines.append([_name(group, entry), *cells, *[_gain(group, entry) for _ in more]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(measure: Measure) -> str:
    unit = f" ({measure.unit})" if measure.unit and measure.unit != "%" else ""
    place = f"{measure.heading}: " if measure.heading.startswith("Round") else ""
    return escape(place + measure.title + unit)


def _name(group: Group, entry: Entry) -> str:
    notes = [*entry.notes, *["collapsed"] * has_collapsed(group, entry)]
    return escape(entry.label) + (f" ({', '.join(notes)})" if notes else "")


def _cell(entry: Entry, measure: Measure, rank: int | None) -> str:
    found = entry.spread(measure.value)
    if found is None:
        return UNKNOWN
    mark = "**" if rank == 1 else "*" if rank == 2 else ""
    std = f" ± {found.std:.{measure.digits}f}" if found.std is not None else ""
    return f"{mark}{found.mean:.{measure.digits}f}{mark}{std}"


def _gain(group: Group, entry: Entry) -> str:
    gain = group.gain(entry)
    if gain is None:
        return UNKNOWN
    return f"{gain.mean:+z.1f}" + (" ({:+z.1f} to {:+z.1f})".format(*gain.interval) if gain.interval else "")


def escape(text: str) -> str:
    r"""Escape text for Markdown, including tables.

    Example:
        >>> print(escape("a|b *c* <d>"))
        a\|b \*c\* &lt;d&gt;
    """
    flat = " ".join(str(text).split())
    return re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", html.escape(flat, quote=False))
