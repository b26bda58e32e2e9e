"""Terminal tables as text."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tta_bench.report.table import comparison_tables


def shown(*results):
    """Each table as lines of text."""
    console = Console(width=300, record=True, file=StringIO())
    texts = []
    for table in comparison_tables(results):
        console.print(table)
        texts.append(console.export_text().splitlines())
    return texts


def cells(lines, label):
    """The cells of the row with this label."""
    (line,) = [line for line in lines if line.strip(" │┃").startswith(f"{label} ")]
    return [cell.strip() for cell in line.replace("┃", "│").split("│")[2:-1]]
