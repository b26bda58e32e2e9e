"""Progress of all jobs: a live table of the running ones and counts of the others; without a terminal, lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tta_bench.callbacks.progress import Progress
from tta_bench.console import say

REFRESH = 0.25  # seconds between two updates of the table


class Line(NamedTuple):
    """A running job."""

    title: str
    place: str
    progress: Progress | None


class Counts(NamedTuple):
    """How many jobs are in each state."""

    done: int
    running: int
    waiting: int
    failed: int

    def __str__(self) -> str:
        return ", ".join(f"{number} {name}" for name, number in self._asdict().items())


class Screen:
    """Shows what runs where.

    Args:
        console: Where to print.
        every: Seconds between two lines if there is no terminal.
        rows: Jobs in the table at most.
    """

    def __init__(self, console: Console, every: float = 30.0, rows: int = 30) -> None:
        self.console, self.every, self.rows = console, every, rows
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._printed, self._drawn = time.monotonic(), 0.0

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str, style: str = "") -> None:
        """Print a line that stays above the table."""
        say(self.console, sentence, style)

    def show(self, lines: Sequence[Line], counts: Counts) -> None:
        """Update the table; without a terminal, print the counts periodically."""
        now = time.monotonic()
        if self._live is not None:
            if now - self._drawn > REFRESH:
                self._drawn = now
                self._live.update(jobs_on_screen(lines[: self.rows], counts), refresh=True)
        elif now - self._printed > self.every:
            self._printed = now
            self.say(str(counts), "dim")


def jobs_on_screen(lines: Sequence[Line], counts: Counts) -> Table:
    """Table of the running jobs, titled with the counts."""
    table = Table("run", "where", title=str(counts), expand=False)
    for name in ("batch", "speed", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("now", no_wrap=True)
    for line in lines:
        progress = line.progress
        if progress is None:
            table.add_row(escape(line.title), escape(line.place), "", "", "", "starting")
            continue
        left = progress.seconds_left
        table.add_row(
            escape(line.title),
            escape(line.place),
            f"{progress.batch}/{progress.total}",
            f"{progress.speed:.2f}/s" if progress.speed else "",
            "" if left is None else str(timedelta(seconds=round(left))),
            escape(progress.note),
        )
    return table
