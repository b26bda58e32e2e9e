"""Lines and progress bars on the console, in the same form for all commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text


def say(console: Console, sentence: str | Text, style: str = "") -> None:
    """Print a sentence verbatim on one line.

    Rich would otherwise interpret ``[...]`` in paths and error messages as markup, colour numbers, and break lines in
    the middle of a path or a command that the user may want to copy.

    Args:
        console: Where to print.
        sentence: What to print.
        style: Style of the whole sentence, such as ``dim`` or ``bold red``.
    """
    console.print(sentence, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def progress_bar(console: Console, *amounts: str | ProgressColumn, transient: bool = True) -> Progress:
    """Create a progress bar with description, progress and remaining time. Without a terminal, nothing is drawn.

    Args:
        console: Where to draw it.
        amounts: Columns between the bar and the remaining time; by default "done/total".
        transient: Whether to remove the bar at the end.
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


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless there is one.

    Example:
        >>> counted(1, "run"), counted(3, "run")
        ('1 run', '3 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
