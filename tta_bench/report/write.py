"""A report in any of its formats."""

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
    """The format that a file's name ends with.

    Raises:
        ValueError: If it ends with none.
    """
    for name, suffix in SUFFIXES.items():
        if path.suffix.lower() == suffix:
            return name
    raise ValueError(f"{path} names no format: end it with {', '.join(SUFFIXES.values())}, or say --format")


def report_text(results: Iterable[Result], form: str, baseline: str = SOURCE, place: Path | None = None) -> str:
    """The report as text.

    Args:
        results: Contents of ``result.json`` files.
        form: One of ``FORMATS``.
        baseline: What the gain is over, see :func:`tta_bench.report.groups.group_runs`.
        place: Folder that the report will lie in; a page's links are relative to it. By default the current one.

    Raises:
        ValueError: If the format or the baseline is unknown.
    """
    if form not in FORMATS:
        raise ValueError(f"there is no format {form}: choose one of {', '.join(FORMATS)}")
    groups = group_runs(map(RunRecord, results), baseline)
    if form == "markdown":
        from tta_bench.report.markdown import markdown_report

        return markdown_report(groups)
    if form == "latex":
        from tta_bench.report.latex import latex_report

        return latex_report(groups)
    if form == "csv":
        from tta_bench.report.long_csv import csv_report

        return csv_report(groups)
    if form == "html":
        from tta_bench.report.page import html_report

        return html_report(groups, place or Path())
    return _terminal(groups)


def _terminal(groups: Iterable[Group]) -> str:
    text = io.StringIO()
    console = Console(file=text, width=PAGE_WIDTH)
    for group in groups:
        console.print(GroupTable(group))
    return text.getvalue()
