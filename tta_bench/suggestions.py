"""Suggestions for messages about unknown names: the nearest known name, and all choices."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(
    word: str, known: Iterable[str], *, more: Iterable[str] = (), listed: str = "choose from", prefix: str = ""
) -> str:
    """Continue "there is no ... 'word'" with a separator, the nearest known word if one is near, and the choices.

    Args:
        word: The unknown word.
        known: Known words, which are all listed.
        more: Further known words, which are too many to list.
        listed: Introduction of the list.
        prefix: Prefix of the nearest word, such as the section of a key.

    Example:
        >>> did_you_mean("tenr", ["source", "tent"])
        "; did you mean 'tent'? choose from: source, tent"
        >>> did_you_mean("xyz", ["source", "tent"])
        '; choose from: source, tent'
        >>> did_you_mean("resnet51", [], more=["resnet50", "vgg16"])
        "; did you mean 'resnet50'?"
    """
    known = list(known)
    near = get_close_matches(str(word), [*known, *more], n=1, cutoff=0.5)
    hint = f"did you mean {prefix + near[0]!r}?" if near else ""
    choices = f"{listed}: {', '.join(known)}" if known else ""
    told = " ".join(filter(None, (hint, choices)))
    return f"; {told}" if told else ""
