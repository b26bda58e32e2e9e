"""The words of a command line, such as ``method.lr=0.01``: each is read once, here, and handed on as an ``Override``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

GROUPS = ("setting", "dataset", "model", "trainer", "logger", "callbacks", "method", "tuned")


class ConfigError(ValueError):
    """The user's words do not make a run; the message is one sentence with the remedy."""


@dataclass(frozen=True)
class Override:
    """One word, ``key=value``.

    Attributes:
        key: Dotted, as in ``method.lr``; the name of a group (``method``) where the word chooses one of its options.
        text: The value as it was written.
        value: What that stands for: a number, a string, a list, ...
    """

    key: str
    text: str
    value: Any = field(compare=False)

    @property
    def chooses(self) -> bool:
        """Whether it chooses an option of a group rather than setting a value."""
        return self.key in GROUPS

    def under(self, key: str) -> Override:
        """The same value for another key."""
        return replace(self, key=key)

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


Words = Sequence[str | Override]


def read_words(words: Iterable[str | Override]) -> tuple[Override, ...]:
    """Read words; those that have been read before stay as they are.

    Raises:
        ConfigError: If one cannot be read, or holds several values.
    """
    return tuple(word if isinstance(word, Override) else read_word(word) for word in words)


def read_word(word: str) -> Override:
    """Read ``key=value``.

    Raises:
        ConfigError: If it cannot be read, or holds several values.
    """
    key, equals, text = word.partition("=")
    if key.startswith(("+", "~")):
        raise ConfigError(f"{word!r}: keys cannot be added or removed, only set")
    if not key or not equals:
        raise ConfigError(f"{word!r} is not an override: write key=value, for example setting=cdc or method.lr=0.01")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        message = f"cannot read {word!r}: quote values with special characters, as in key='\"a b\"'"
        raise ConfigError(message) from error
    if override.is_sweep_override():
        raise ConfigError(f"{word!r} holds several values: a list is written [a,b]")
    return Override(key, text, override.value())


def word_for(key: str, value: Any) -> Override:
    """The word that sets a key to a value of Python."""
    return Override(key, "null" if value is None else str(value), value)


def value_of(words: Iterable[Override], key: str, default: Any = None) -> Any:
    """The value that words give a key; of several, the last."""
    return next((word.value for word in reversed(tuple(words)) if word.key == key), default)


def as_list(word: Override) -> list[Any]:
    """The different values of ``key=[a,b]``, or of ``key=a``.

    Raises:
        ConfigError: If there is none.
    """
    items = word.value if isinstance(word.value, list) else [word.value]
    if not items or "" in items or None in items:
        raise ConfigError(f"{word}: name at least one, for example methods=[source,tent] or seeds=[0,1,2]")
    return list(dict.fromkeys(items))


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
            seeds = tuple(as_list(word))
        elif word.key in ("method", "seed"):
            raise ConfigError(f"{command} has several runs: write {word.key}s=[{word.text}] instead of {word}")
        elif rest and first not in GROUPS and is_method(first):
            inner = rest if rest.partition(".")[0] in GROUPS else f"method.{rest}"
            own[first] = (*own.get(first, ()), word.under(inner))
        else:
            common.append(word)
    return Request(methods, seeds, tuple(common), own)
