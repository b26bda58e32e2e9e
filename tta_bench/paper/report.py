"""Reproduced tables for the terminal, in Markdown and as CSV, with our numbers, the paper's and the difference."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tta_bench.config.words import value_of
from tta_bench.console import say
from tta_bench.files import writing
from tta_bench.paper.measures import MEASURES
from tta_bench.paper.reproduce import PaperCell, Reproduction
from tta_bench.paper.tables import PaperColumn, PaperRow, PaperTable
from tta_bench.report.markdown import escape as markdown
from tta_bench.report.table import UNKNOWN
from tta_bench.results.identity import NOT_IDENTITY

PAPER = "Zhang et al., ICML 2025"
LINES = ("ours", "paper", "difference")
SILENT = (*NOT_IDENTITY, "trainer")  # overrides that are not worth a remark
HEAD = ("row", "column", "measure", "ours", "std", "runs", "paper", "difference", "failed")


def heading(done: Reproduction) -> str:
    """Heading of the table, which says whether it may be compared with the paper."""
    table = done.plan.table
    text = f"{table.title} ({PAPER}, {table.place})"
    if not done.is_substitute:
        return text
    return f"{text}, on {done.dataset}, a substitute for {table.dataset}: the paper's numbers are for reference only"


def remarks(done: Reproduction) -> list[str]:
    """Remarks for the reader, one sentence each."""
    table = done.plan.table
    seeds = ", ".join(map(str, table.seeds))
    words = [str(word) for word in done.plan.common if word.key.partition(".")[0] not in (*SILENT, "dataset")]
    words += [f"{name}.{str(word).removeprefix('method.')}" for name, own in done.plan.own.items() for word in own]
    oracle = [row.name for row in table.rows if value_of(row.words, "reset") in ("domain", "first_domain")]
    shown = dict.fromkeys(MEASURES[table.measure_of(r, c)].label for r in table.rows for c in done.columns)
    found = [
        f"Shown: {'; '.join(shown)}.",
        f"Seed{'s' * (len(table.seeds) > 1)} {seeds}"
        + "; mean ± standard deviation over the runs of a cell" * _has_spread(done)
        + ".",
        f"With {' '.join(words)}." if words else "",
        f"{', '.join(oracle)}: uses an oracle for the domain boundaries." if oracle else "",
        table.note,
    ]
    return [*filter(None, found), *(f"Failed: {words}: {error}" for words, error in done.failures.items())]


def _has_spread(done: Reproduction) -> bool:
    return any(cell.ours is not None and cell.ours.std is not None for cell in done.cells.values())


def _lines(done: Reproduction, row: PaperRow, columns: Sequence[PaperColumn]) -> Iterator[list[str]]:
    """The lines of a row: its label, and one text per column."""
    cells = [(column, done.cells[row.name, column.name]) for column in columns]
    last = 1 if all(cell.paper is None for _, cell in cells) else 2 if done.is_substitute else 3
    for kind in LINES[:last]:
        yield [kind, *(_text(done, row, column, cell, kind) for column, cell in cells)]


def _text(done: Reproduction, row: PaperRow, column: PaperColumn, cell: PaperCell, kind: str) -> str:
    if kind == "ours":
        return _ours(done, row, column, cell)
    number = cell.paper if kind == "paper" else cell.difference
    if number is None:
        return UNKNOWN
    text = done.form(row, column, number)
    return f"+{text}" if kind == "difference" and number > 0 and not text.startswith("+") else text


def _ours(done: Reproduction, row: PaperRow, column: PaperColumn, cell: PaperCell) -> str:
    if cell.ours is None:
        return UNKNOWN if cell.failed is None else "failed"
    text = done.form(row, column, cell.ours.mean)
    return text if cell.ours.std is None else f"{text} ± {done.form(row, column, cell.ours.std).lstrip('+')}"


def print_report(done: Reproduction, console: Console) -> None:
    """Print the table, in several parts if it is too wide for the terminal."""
    rows, columns = done.plan.table.rows, done.columns
    texts = {row.name: list(_lines(done, row, columns)) for row in rows}
    labels = max(map(len, texts)) + len(LINES[2]) + 7
    widths = [
        max(len(c.name), *(len(line[k]) for lines in texts.values() for line in lines)) + 3
        for k, c in enumerate(columns, 1)
    ]
    say(console, heading(done), "bold")
    for start, stop in _parts(widths, console.width - labels):
        table = Table()
        table.add_column("")
        table.add_column("")
        for column in columns[start:stop]:
            table.add_column(escape(column.name), justify="right", no_wrap=True)
        for row in rows:
            for k, (kind, *cells) in enumerate(texts[row.name]):
                style = ("", "dim", "cyan")[k]
                table.add_row(escape(row.name) if k == 0 else "", kind, *cells[start:stop], style=style)
            table.add_section()
        console.print(table)
    for remark in remarks(done):
        say(console, remark)


def _parts(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Split columns into ranges that fit into the room, with at least one column each.

    Example:
        >>> _parts([10, 10, 10], 25)
        [(0, 2), (2, 3)]
    """
    parts, start = [], 0
    for k in range(1, len(widths) + 1):
        if k == len(widths) or sum(widths[start : k + 1]) > room:
            parts.append((start, k))
            start = k
    return parts


def markdown_text(done: Reproduction) -> str:
    """Format the table in Markdown."""
    head = ["", "", *(markdown(column.name) for column in done.columns)]
    lines = [head, ["---", "---", *["---:"] * len(done.columns)]]
    for row in done.plan.table.rows:
        for k, cells in enumerate(_lines(done, row, done.columns)):
            lines.append([markdown(row.name) if k == 0 else "", *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {markdown(remark)}" for remark in remarks(done))
    return f"# {markdown(heading(done))}\n\n{table}\n\n{notes}\n"


def csv_text(done: Reproduction) -> str:
    """Format one line per cell; the difference is empty on substitute data."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "dataset", *HEAD])
    table: PaperTable = done.plan.table
    for row in table.rows:
        for column in done.columns:
            cell = done.cells[row.name, column.name]
            ours = (cell.ours.mean, cell.ours.std, cell.ours.n) if cell.ours else (None, None, None)
            difference = None if done.is_substitute else cell.difference
            values = (table.measure_of(row, column), *ours, cell.paper, difference, cell.failed)
            writer.writerow([table.name, done.dataset, row.name, column.name, *values])
    return text.getvalue()


def write_report(done: Reproduction) -> list[str]:
    """Write Markdown, CSV and a figure next to the runs.

    Returns:
        The files.

    Raises:
        WriteError: If the files cannot be written.
    """
    from tta_bench.paper.figure import draw

    files = {suffix: done.folder / f"{done.plan.table.name}.{suffix}" for suffix in ("md", "csv", "png")}
    with writing(done.folder):
        done.folder.mkdir(parents=True, exist_ok=True)
        files["md"].write_text(markdown_text(done), encoding="utf-8")
        files["csv"].write_text(csv_text(done), encoding="utf-8")
        draw(done, files["png"], heading(done))
    return [str(file) for file in files.values()]
