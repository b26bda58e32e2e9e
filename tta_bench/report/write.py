"""Reports in all formats."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from tta_bench.report.groups import SOURCE, Group, group_runs
from tta_bench.report.runs import Result, RunRecord
from tta_bench.report.table import GroupTable

SUFFIXES = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv", "html": ".html"}
FORMATS = tuple(SUFFIXES)
PAGE_WIDTH = 200


def format_of(path: Path) -> str:
    """Infer the format from the suffix of a file.

    Raises:
        ValueError: If the suffix is unknown.
    """
    for name, suffix in SUFFIXES.items():
        if path.suffix.lower() == suffix:
            return name
    raise ValueError(f"{path} has no known suffix ({', '.join(SUFFIXES.values())}): rename it, or set --format")


def report_text(
    results: Iterable[Result],
    form: str,
    baseline: str = SOURCE,
    place: Path | None = None,
    deviations: bool = False,
) -> str:
    """Format the report as text.

    Args:
        results: Contents of ``result.json`` files.
        form: One of ``FORMATS``.
        baseline: Baseline of the gains, see :func:`tta_bench.report.groups.group_runs`.
        place: Folder of the report, to which a page's links are relative; by default the current folder.
        deviations: Whether every cell of a LaTeX table has its standard deviation, and not only the mean.

    Raises:
        ValueError: If the format or the baseline is unknown, or ``deviations`` is set for another format.
    """
    if form not in FORMATS:
        raise ValueError(f"there is no format {form}: choose one of {', '.join(FORMATS)}")
    if deviations and form != "latex":
        raise ValueError(f"deviations can be chosen for LaTeX only, the format is {form}: drop --deviations")
    groups = group_runs(map(RunRecord, results), baseline)
    if form == "markdown":
        from tta_bench.report.markdown import markdown_report

        return markdown_report(groups)
    if form == "latex":
        from tta_bench.report.latex import latex_report

        return latex_report(groups, deviations=deviations)
    if form == "csv":
        from tta_bench.report.long_csv import csv_report

        return csv_report(groups)
    if form == "html":
        from tta_bench.report.page import html_report

        return html_report(groups, place or Path())
    return _terminal(groups)


def report_figures(results: Iterable[Result], folder: Path, baseline: str = SOURCE) -> list[str]:
    """Draw the figures of all groups, see :func:`tta_bench.report.figures.write_figures`."""
    from tta_bench.report.figures import write_figures

    return write_figures(group_runs(map(RunRecord, results), baseline), folder)


def _terminal(groups: Iterable[Group]) -> str:
    text = io.StringIO()
    console = Console(file=text, width=PAGE_WIDTH)
    for group in groups:
        console.print(GroupTable(group))
    return text.getvalue()
