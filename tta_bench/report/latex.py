"""LaTeX tables with booktabs in the layout of the paper: methods down, corruptions or rounds across in groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tta_bench.report.groups import Entry, Group
from tta_bench.report.measures import Measure, column_measures, mean_measure

PREAMBLE = r"% Needs \usepackage{booktabs} and \usepackage{graphicx}."
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "·": r"$\cdot$", "–": "--", "±": r"$\pm$",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}  # fmt: skip


def latex_report(groups: Sequence[Group]) -> str:
    """Format one ``table*`` per group."""
    return "\n\n".join([PREAMBLE, *(_table(group) for group in groups)]) + "\n"


def _table(group: Group) -> str:
    columns, mean = column_measures(group), mean_measure(group)
    heads = [(heading, len(list(same))) for heading, same in groupby(columns, key=lambda measure: measure.heading)]
    ranks = {measure: measure.ranks(group) for measure in (*columns, mean)}
    better = r"\uparrow" if mean.higher else r"\downarrow"
    names = [*(escape(measure.title) for measure in columns), f"Mean${better}$", r"Gain$\uparrow$"]
    rows = []
    for entry in group.baseline_first:
        cells = [_cell(entry, measure, ranks[measure].get(entry), with_std=measure is mean) for measure in ranks]
        rows.append([_name(entry), *cells, _gain(group, entry)])
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            f"\\caption{{{_caption(group)}}}",
            r"\resizebox{\textwidth}{!}{%",
            f"\\begin{{tabular}}{{l{'c' * len(columns)}cc}}",
            r"\toprule",
            *_headings(heads),
            f"Method & {' & '.join(names)} \\\\",
            r"\midrule",
            *(f"{' & '.join(row)} \\\\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]
    )


def _headings(heads: Sequence[tuple[str, int]]) -> list[str]:
    if not any(heading for heading, _ in heads):
        return []
    cells, rules, first = [], [], 2
    for heading, count in heads:
        cells.append(f"\\multicolumn{{{count}}}{{c}}{{{heading}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return [f" & {' & '.join(cells)} & & \\\\", " ".join(rules)]


def _caption(group: Group) -> str:
    what = "Mean IoU" if group.segments else "Classification error"
    several = max((len(entry.counted) for entry in group.entries), default=0) > 1
    note = f" Only this table: {escape(group.note)}." if group.note else ""
    spread = " Mean $\\pm$ standard deviation over the streams." if several else ""
    return (
        f"{what} (\\%), {escape(group.name)}, {escape(group.in_words())}.{note}{spread} "
        f"Gain over {escape(group.baseline)} in points. \\textbf{{Best}} and \\underline{{second best}} of the "
        "methods that finished the same streams."
        + "".join(f" \\textbf{{Inconsistent files:}} {escape(told)}" for told in group.disagreements)
    )


def _name(entry: Entry) -> str:
    return escape(entry.label + (f" ({', '.join(entry.notes)})" if entry.notes else ""))


def _cell(entry: Entry, measure: Measure, rank: int | None, *, with_std: bool) -> str:
    found = entry.spread(measure.value)
    if found is None:
        return "--"
    mean = f"{found.mean:.1f}"
    marked = f"\\textbf{{{mean}}}" if rank == 1 else f"\\underline{{{mean}}}" if rank == 2 else mean
    return f"{marked}{{\\scriptsize$\\pm${found.std:.1f}}}" if with_std and found.std is not None else marked


def _gain(group: Group, entry: Entry) -> str:
    gain = group.gain(entry)
    return "--" if gain is None else f"${gain.mean:+z.1f}$"


def escape(text: str) -> str:
    r"""Escape text for LaTeX.

    Example:
        >>> print(escape("lr=50% of_it"))
        lr=50\% of\_it
    """
    return "".join(SPECIAL.get(char, char) for char in " ".join(str(text).split()))
