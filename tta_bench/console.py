"""Lines and progress bars on the console, alike in all commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text


def say(console: Console, sentence: str | Text, style: str = "") -> None:
    """Print a sentence as it is, on one line.

    Rich would otherwise take ``[...]`` in paths and error messages for markup, colour numbers, and break lines in the
    middle of a path or a command that somebody wants to copy.

    Args:
        console: Where to print.
        sentence: What to print.
        style: Style of the whole sentence, such as ``dim`` or ``bold red``.
    """
    console.print(sentence, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def progress_bar(console: Console, *amounts: str | ProgressColumn, transient: bool = True) -> Progress:
    """A progress bar: what is done, how much of it, and the time that remains. Without a terminal, nothing is drawn.

    Args:
        console: Where it is drawn.
        amounts: Columns between the bar and the remaining time; by default "done/total".
        transient: Remove the bar at the end.
    """
    columns = [TextColumn(column) if isinstance(column, str) else column for column in amounts]
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),  # short, so that the other columns fit into 80 characters
        *(columns or [MofNCompleteColumn()]),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )
