"""The words of a command line, such as ``method.lr=0.01``: read one, and tell which values it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException


class ConfigError(ValueError):
    """The user's words do not make a run; the message is one sentence with the remedy."""


def dataset_of(words: Sequence[str]) -> str | None:
    """The data set that words name."""
    return next((word.partition("=")[2] for word in words if word.startswith("dataset=")), None)


def read_word(word: str) -> Any:
    """The value in ``key=value``.

    Raises:
        ConfigError: If the word cannot be read, or holds several values.
    """
    if not word.partition("=")[0] or "=" not in word:
        raise ConfigError(f"{word!r} is not an override: write key=value, for example setting=cdc or method.lr=0.01")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        message = f"cannot read {word!r}: quote values with special characters, as in key='\"a b\"'"
        raise ConfigError(message) from error
    if override.is_sweep_override():
        raise ConfigError(f"{word!r} holds several values: a list is written [a,b]")
    return override.value()


def as_list(word: str) -> list[Any]:
    """The different values of ``key=[a,b]``, or of ``key=a``.

    Raises:
        ConfigError: If there is none.
    """
    items = read_word(word)
    items = items if isinstance(items, list) else [items]
    if not items or "" in items or None in items:
        raise ConfigError(f"{word}: name at least one, for example methods=[source,tent] or seeds=[0,1,2]")
    return list(dict.fromkeys(items))


def seeds_of(word: str) -> list[int]:
    """The seeds of ``seeds=[0,1]``.

    Raises:
        ConfigError: If one is not a whole number from 0 on.
    """
    seeds = as_list(word)
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ConfigError(f"{word}: a seed is a whole number from 0 on, got {seed!r}")
    return seeds
