"""What there is to choose from: a line for each option, or all about one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tta_bench.cli.known import GROUPS, known_options
from tta_bench.cli.terminal import console, loading, one_sentence
from tta_bench.console import say
from tta_bench.suggestions import did_you_mean

LISTS = {f"{group}s": group for group in GROUPS}


def list_options(
    what: Annotated[str, typer.Argument(metavar="methods|settings|datasets|models")],
    name: Annotated[str | None, typer.Argument(help="Only this one, with all that is known of it")] = None,
    markdown: Annotated[bool, typer.Option(help="Print docs/methods.md")] = False,
) -> None:
    """List the available methods, settings, data sets or models, or describe one of them.

    For example:

    - `tta-bench list methods`
    - `tta-bench list methods dpcore`
    - `tta-bench list methods --markdown > methods.md`
    """
    with one_sentence():
        if what not in LISTS:
            raise ValueError(f"there is no list of {what!r}: choose from {', '.join(LISTS)}")
        if markdown and (what != "methods" or name is not None):
            raise ValueError("--markdown is only for the whole list of methods")
        group, known = LISTS[what], dict(known_options(LISTS[what]))
        if markdown:
            from tta_bench.cli.method_table import methods_markdown

            sys.stdout.write(methods_markdown())
        elif name is None:
            _print_lines(known)
        elif name in known:
            with loading():
                from tta_bench.cli.details import details
            sys.stdout.write(details(group, name))
        else:
            raise ValueError(f"there is no {group} {name!r}{did_you_mean(name, known)}")


def _print_lines(known: dict[str, str]) -> None:
    """A line for each option, cut at the edge of a terminal."""
    width = max(map(len, known))
    for name, about in known.items():
        line = f"{name:<{width}}  {about}".rstrip()
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="ellipsis", highlight=False, markup=False)
        else:
            say(console, line)
