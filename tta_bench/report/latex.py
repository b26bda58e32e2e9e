"""Tables in LaTeX with booktabs, laid out as the paper's: methods down, corruptions across in their four groups."""

from __future__ import annotations

from collections.abc import Sequence

from tta_bench.report.corruptions import domain_groups
from tta_bench.report.groups import Entry, Group
from tta_bench.report.measures import MEAN, Measure, domain_measures

PREAMBLE = r"% Needs \usepackage{booktabs} and \usepackage{graphicx}."
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "·": r"$\cdot$", "–": "--", "±": r"$\pm$",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}  # fmt: skip


def latex_report(groups: Sequence[Group]) -> str:
    """One ``table*`` per group."""
    return "\n\n".join([PREAMBLE, *(_table(group) for group in groups)]) + "\n"


def _table(group: Group) -> str:
    heads = domain_groups(group.domains)
    measures = [*domain_measures(group), MEAN]
    ranks = [measure.ranks(group) for measure in measures]
    names = [*(short for _, names in heads for short in names.values()), r"Mean$\downarrow$", r"Gain$\uparrow$"]
    names[:-2] = [escape(name) for name in names[:-2]]
    rows = [
        [_name(entry), *(_cell(entry, m, r.get(entry, 0)) for m, r in zip(measures, ranks, strict=True)),
         _gain(group, entry)]
        for entry in group.baseline_first
    ]  # fmt: skip
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            f"\\caption{{{_caption(group)}}}",
            r"\resizebox{\textwidth}{!}{%",
            f"\\begin{{tabular}}{{l{''.join(_columns(len(names)) for _, names in heads)}cc}}",
            r"\toprule",
            *_headings([(heading, len(names)) for heading, names in heads]),
            f"Method & {' & '.join(names)} \\\\",
            r"\midrule",
            *(f"{' & '.join(row)} \\\\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]
    )


def _columns(count: int) -> str:
    return "c" * count


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
    several = max((len(entry.counted) for entry in group.entries), default=0) > 1
    note = f" Only this table: {escape(group.note)}." if group.note else ""
    spread = " Mean $\\pm$ standard deviation over the streams." if several else ""
    return (
        f"Classification error (\\%), {escape(group.name)}, {escape(group.in_words())}.{note}{spread} "
        f"Gain over {escape(group.baseline)} in points. \\textbf{{Best}} and \\underline{{second best}} of the "
        "methods that finished the same streams."
    )


def _name(entry: Entry) -> str:
    return escape(entry.label + (f" ({', '.join(entry.notes)})" if entry.notes else ""))


def _cell(entry: Entry, measure: Measure, rank: int) -> str:
    found = entry.spread(measure.value)
    if found is None:
        return "--"
    mean = f"{found.mean:.1f}"
    marked = {1: f"\\textbf{{{mean}}}", 2: f"\\underline{{{mean}}}"}.get(rank, mean)
    shows_std = measure is MEAN and found.std is not None
    return f"{marked}{{\\scriptsize$\\pm${found.std:.1f}}}" if shows_std else marked


def _gain(group: Group, entry: Entry) -> str:
    gain = group.gain(entry)
    return "--" if gain is None else f"${gain.mean:+.1f}$"


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    Example:
        >>> print(escape("lr=50% of_it"))
        lr=50\% of\_it
    """
    return "".join(SPECIAL.get(char, char) for char in " ".join(str(text).split()))
