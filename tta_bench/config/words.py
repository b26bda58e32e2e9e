"""Parsing of command-line overrides such as ``method.lr=0.01``, which happens only here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

GROUPS = ("setting", "dataset", "model", "trainer", "logger", "callbacks", "method", "tuned", "launcher")


class ConfigError(ValueError):
    """The user's overrides are wrong; the message is one sentence with the remedy."""


@dataclass(frozen=True)
class Override:
    """One override, ``key=value``.

    Attributes:
        key: Dotted key, as in ``method.lr``, or the name of a group (``method``) to choose one of its options.
        text: The value as written.
        value: The parsed value: a number, a string, a list, ...
    """

    key: str
    text: str
    value: Any = field(compare=False)

    @property
    def chooses(self) -> bool:
        """Whether it chooses an option of a group instead of setting a value."""
        return self.key in GROUPS

    def under(self, key: str) -> Override:
        """The same value for another key."""
        return replace(self, key=key)

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


Words = Sequence[str | Override]


def read_words(words: Iterable[str | Override]) -> tuple[Override, ...]:
    """Parse overrides; parsed ones are returned unchanged.

    Raises:
        ConfigError: If one cannot be parsed, or has several values.
    """
    return tuple(word if isinstance(word, Override) else read_word(word) for word in words)


def read_word(word: str) -> Override:
    """Parse ``key=value``.

    Raises:
        ConfigError: If it cannot be parsed, or has several values.
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
        raise ConfigError(f"{word!r} has several values: write a list as [a,b]")
    return Override(key, text, override.value())


def word_for(key: str, value: Any) -> Override:
    """Create the override that sets a key to a Python value; a class is given by its import path.

    Example:
        >>> str(word_for("dataset.domains", ["fog", "snow"])), str(word_for("dataset.root", "my images"))
        ('dataset.domains=[fog,snow]', "dataset.root='my images'")
    """
    return read_word(f"{key}={_text(value)}")


# Text that needs no quotes.
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_/][\w./-]*", re.IGNORECASE)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    text = f"{value.__module__}.{value.__qualname__}" if inspect.isclass(value) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    before_quotes = re.sub(r"(\\+)(?='|$)", r"\1\1", text)  # elsewhere a backslash is literal
    return "'" + before_quotes.replace("'", "\\'") + "'"


def value_of(words: Iterable[Override], key: str, default: Any = None) -> Any:
    """The last value that overrides give a key."""
    return next((word.value for word in reversed(tuple(words)) if word.key == key), default)
