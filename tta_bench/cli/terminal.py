"""What all commands share: where they print, their overrides, and how they tell of a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tta_bench.files import WriteError
from tta_bench.ranks import is_worker

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, e.g. setting=cdc dataset.severity=3"),
]
console = Console(quiet=is_worker())
errors = Console(stderr=True)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn a user's mistake, or a disk that is full, into one sentence and exit status 2."""
    try:
        yield
    except (ValueError, FileNotFoundError, WriteError) as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
