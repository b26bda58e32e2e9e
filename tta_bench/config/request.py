"""What the words of a command that makes several runs ask for: which methods and seeds, and what for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tta_bench.config.validate import SEED, check
from tta_bench.config.words import GROUPS, ConfigError, Override, Words, read_words


def as_list(word: Override) -> list[Any]:
    """The different values of ``key=[a,b]``, or of ``key=a``.

    Raises:
        ConfigError: If there is none.
    """
    items = word.value if isinstance(word.value, list) else [word.value]
    if not items or "" in items or None in items:
        raise ConfigError(f"{word}: name at least one, for example methods=[source,tent] or seeds=[0,1,2]")
    return list(dict.fromkeys(items))


def seeds_of(word: Override) -> tuple[int, ...]:
    """The seeds of ``seeds=[0,1]``.

    Raises:
        ConfigError: If one is not a whole number from 0 on.
    """
    return tuple(check("seeds", as_list(word), list[SEED]))


@dataclass(frozen=True)
class Request:
    """What words ask of several runs.

    Attributes:
        methods: Of ``methods=[...]``; None where nothing is said.
        seeds: Of ``seeds=[...]``; None where nothing is said.
        common: The words of all runs.
        own: By method, the words of its runs alone: ``tent.lr=0.01`` becomes ``method.lr=0.01``, and
            ``tent.dataset.severity=3`` becomes ``dataset.severity=3``.
    """

    methods: tuple[str, ...] | None
    seeds: tuple[int, ...] | None
    common: tuple[Override, ...]
    own: Mapping[str, tuple[Override, ...]]


def read_request(words: Words, is_method: Callable[[str], bool], *, command: str) -> Request:
    """Sort the words of a command that makes several runs.

    Args:
        words: The words.
        is_method: Whether words can be addressed to a method of this name.
        command: What the command is called.

    Raises:
        ConfigError: If a word cannot be read, or is for one run only.
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
