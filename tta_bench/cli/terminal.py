"""Shared by all commands: consoles, the overrides argument, and error messages."""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from tta_bench.cli.completion import complete_word
from tta_bench.console import say
from tta_bench.files import WriteError

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Overrides, e.g. setting=cdc dataset.severity=3",
        autocompletion=complete_word,
    ),
]
REPLACEMENTS = {"–": "-", "—": "-", "±": "~", "·": "|", "…": "."}
"""One-character replacements for characters that the terminal's encoding lacks, so that tables stay aligned."""
UsageError: Any = typer.BadParameter.__base__
"""Raised for a wrong option or argument. Old versions of Typer have it from Click, new ones from a private module."""


class Program(TyperGroup):
    """The command group.

    Characters that the terminal cannot encode are replaced instead of raising an error; a wrong option or argument is
    one sentence with an example.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command."""
        codecs.register_error("tta_bench.replace", _replaced)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="tta_bench.replace")
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Parse and run a subcommand."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the help of a group of commands, as if asked for
                raise
            complain("error", _with_example(error, error.ctx or ctx))
            raise typer.Exit(2) from error


def _with_example(error: Any, ctx: Any) -> str:
    """What is wrong with a call, and the first example in the help of the command."""
    message = " ".join(error.format_message().split())
    message = message.replace("Value error, ", "")  # a prefix of newer releases of Typer
    message = f"{message[0].lower()}{message[1:]}".rstrip(".")
    example = re.search(r"`(tta-bench [^`]+)`", ctx.command.help or "")
    hint = f"For example: {' '.join(example[1].split())}" if example else f"See {ctx.command_path} --help"
    return f"{message}{'' if message.endswith('?') else '.'} {hint}"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(REPLACEMENTS.get(char, "?") for char in error.object[error.start : error.end]), error.end


console = Console()
errors = Console(stderr=True)


@contextmanager
def loading() -> Iterator[None]:
    """Show that something happens during the seconds in which PyTorch and the libraries around it are imported.

    Nothing else may be drawn inside; without a terminal, nothing is shown.
    """
    with console.status("loading PyTorch", spinner="line"):
        yield


def complain(head: str, sentence: str) -> None:
    """Print ``head: sentence`` on standard error."""
    say(errors, Text.assemble((f"{head}:", "bold red"), f" {sentence}"))


@contextmanager
def one_sentence() -> Iterator[None]:
    """Report a user error or a failed write as a single sentence, with exit status 2."""
    try:
        yield
    except (ValueError, FileNotFoundError, WriteError) as error:
        complain("error", str(error))
        raise typer.Exit(2) from error
