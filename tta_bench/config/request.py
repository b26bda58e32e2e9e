"""Overrides of commands with several runs: the methods and seeds, and the overrides of each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tta_bench.config.validate import SEED, check
from tta_bench.config.words import GROUPS, ConfigError, Override, Words, read_words


def as_list(word: Override) -> list[Any]:
    """The distinct values of ``key=[a,b]``, or of ``key=a``.

    Raises:
        ConfigError: If there are none.
    """
    items = word.value if isinstance(word.value, list) else [word.value]
    if not items or "" in items or None in items:
        raise ConfigError(f"{word}: name at least one, for example methods=[source,tent] or seeds=[0,1,2]")
    return list(dict.fromkeys(items))


def seeds_of(word: Override) -> tuple[int, ...]:
    """The seeds of ``seeds=[0,1]``.

    Raises:
        ConfigError: If one is not a non-negative integer.
    """
    return tuple(check("seeds", as_list(word), list[SEED]))


@dataclass(frozen=True)
class Request:
    """Parsed overrides of several runs.

    Attributes:
        methods: The methods of ``methods=[...]``; None if not given.
        seeds: The seeds of ``seeds=[...]``; None if not given.
        common: The overrides of all runs.
        own: By method, overrides of its runs only: ``tent.lr=0.01`` becomes ``method.lr=0.01``, and
            ``tent.dataset.severity=3`` becomes ``dataset.severity=3``.
    """

    methods: tuple[str, ...] | None
    seeds: tuple[int, ...] | None
    common: tuple[Override, ...]
    own: Mapping[str, tuple[Override, ...]]


def read_request(words: Words, is_method: Callable[[str], bool], *, command: str) -> Request:
    """Parse the overrides of a command with several runs.

    Args:
        words: The overrides.
        is_method: Whether a name is that of a method, which may have its own overrides.
        command: Name of the command.

    Raises:
        ConfigError: If an override cannot be parsed, or is for a single run.
    """
    overrides = read_words(words)
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    common: list[Override] = []
    own: dict[str, tuple[Override, ...]] = {}
    for word in overrides:
        first, _, rest = word.key.partition(".")
        if word.key == "methods":
            methods = tuple(str(name) for name in as_list(word))
        elif word.key == "seeds":
            seeds = seeds_of(word)
        elif word.key in ("method", "seed"):
            raise ConfigError(f"{command} has several runs: write {word.key}s=[{word.text}] instead of {word}")
        elif rest and first not in GROUPS and is_method(first):
            inner = rest if rest.partition(".")[0] in GROUPS else f"method.{rest}"
            own[first] = (*own.get(first, ()), word.under(inner))
        else:
            common.append(word)
    return Request(methods, seeds, tuple(common), own)
