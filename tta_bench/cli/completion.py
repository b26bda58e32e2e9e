"""Completion of overrides in the shell: groups, and their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tta_bench.cli.known import GROUPS, known_options


def complete_word(ctx: Any, incomplete: str) -> Iterator[str]:
    """What an override may become: ``method=`` for ``met``, and ``method=tent`` for ``method=te``; Typer selects.

    Args:
        ctx: What was parsed of the line so far. Bash splits words at ``=``, so that the line may end with ``method``;
            then the name of an option alone completes it.
        incomplete: The beginning of the word.
    """
    before = [word for word in ctx.params.get("words") or () if word != "="]
    group, equals, _ = incomplete.partition("=")
    if before and before[-1] in GROUPS:
        yield from (name for name, _ in known_options(before[-1]))
    elif equals and group in GROUPS:
        yield from (f"{group}={name}" for name, _ in known_options(group))
    elif not equals:
        yield from (f"{name}=" for name in GROUPS)
