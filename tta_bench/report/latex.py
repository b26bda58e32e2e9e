"""LaTeX tables with booktabs in the layout of papers: methods down, corruptions or rounds across in groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tta_bench.report.groups import Entry, Group
from tta_bench.report.measures import Measure, column_measures, mean_measure
from tta_bench.report.names import DATASETS, METHODS, MODELS, SETTINGS, display, entry_name, group_slugs
from tta_bench.report.protocol import protocol_card

PREAMBLE = r"% Needs \usepackage{booktabs} and \usepackage{graphicx}."
PROTOCOL = ("Data set", "Setting", "Batch size", "Streams", "Model", "Preprocessing", "Precision")
"""The parts of the protocol card that a footnote repeats."""
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "·": r"$\cdot$", "–": "--", "±": r"$\pm$",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}  # fmt: skip


def latex_report(groups: Sequence[Group], *, deviations: bool = False) -> str:
    """Format one ``table*`` per group.

    Args:
        groups: The groups.
        deviations: Whether every cell has its standard deviation, and not only the mean.
    """
    slugs = group_slugs(groups)
    tables = [_table(group, slug, deviations) for group, slug in zip(groups, slugs, strict=True)]
    return "\n\n".join([PREAMBLE, *tables]) + "\n"


def _table(group: Group, slug: str, deviations: bool) -> str:
    columns, mean = column_measures(group), mean_measure(group)
    heads = [(heading, len(list(same))) for heading, same in groupby(columns, key=lambda measure: measure.heading)]
    ranks = {measure: measure.ranks(group) for measure in (*columns, mean)}
    better = r"\uparrow" if mean.higher else r"\downarrow"
    names = [*(escape(measure.title.replace("_", " ")) for measure in columns), f"Mean${better}$", r"Gain$\uparrow$"]
    rows = []
    for entry in group.baseline_first:
        cells = [_cell(entry, m, ranks[m].get(entry), with_std=deviations or m is mean) for m in ranks]
        rows.append([_name(entry), *cells, _gain(group, entry)])
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            f"\\caption{{{_caption(group)}}}",
            f"\\label{{tab:{slug}}}",
            r"\resizebox{\textwidth}{!}{%",
            f"\\begin{{tabular}}{{l{'c' * len(columns)}cc}}",
            r"\toprule",
            *_headings(heads),
            f"Method & {' & '.join(names)} \\\\",
            r"\midrule",
            *(f"{' & '.join(row)} \\\\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\par\smallskip\raggedright\footnotesize\textsuperscript{{*}}{_footnote(group)}",
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
    tables = zip((DATASETS, SETTINGS, MODELS), group.protocol[""], strict=True)
    dataset, setting, model = (escape(display(table, str(name))) for table, name in tables)
    what = "Mean IoU (\\%, higher is better)" if group.segments else "Classification error (\\%, lower is better)"
    streams = max((len(entry.counted) for entry in group.entries), default=0)
    spread = f", mean and standard deviation over {streams} streams" if streams > 1 else ""
    odd = "".join(f" \\textbf{{Inconsistent files:}} {escape(told)}" for told in group.disagreements)
    return (
        f"{what} on {dataset} under {setting} with {model}{spread}.\\textsuperscript{{*}} The gain is over "
        f"{escape(display(METHODS, group.baseline))}, in points. The best method is in bold, the second best "
        f"underlined, among those that finished the same streams.{odd}"
    )


def _footnote(group: Group) -> str:
    """The protocol in small print."""
    card = [f"{term}: {', '.join(values)}" for term, values in protocol_card(group) if term in PROTOCOL and values]
    return escape(". ".join([*card, *([f"Only this table: {group.note}"] if group.note else [])]) + ".")


def _name(entry: Entry) -> str:
    return escape(entry_name(entry) + (f" ({', '.join(entry.notes)})" if entry.notes else ""))


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
