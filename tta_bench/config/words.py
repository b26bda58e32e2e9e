"""The words of a command line, such as ``method.lr=0.01``: read once, here, and handed on as ``Override``."""

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
    """The word that sets a key to a value of Python; a class stands for its path.

    Example:
        >>> str(word_for("dataset.domains", ["fog", "snow"])), str(word_for("dataset.root", "my images"))
        ('dataset.domains=[fog,snow]', "dataset.root='my images'")
    """
    return read_word(f"{key}={_text(value)}")


# Text that is a string as it stands.
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
    before_quotes = re.sub(r"(\\+)(?='|$)", r"\1\1", text)  # elsewhere a backslash is itself
    return "'" + before_quotes.replace("'", "\\'") + "'"


def value_of(words: Iterable[Override], key: str, default: Any = None) -> Any:
    """The value that words give a key; of several, the last."""
    return next((word.value for word in reversed(tuple(words)) if word.key == key), default)
