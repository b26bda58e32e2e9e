"""The end of a message about a word that is not known: the nearest right one, and all that there are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(
    word: str, known: Iterable[str], *, more: Iterable[str] = (), listed: str = "choose from", prefix: str = ""
) -> str:
    """What follows on "there is no ... 'word'": a separator, the nearest known word if one is near, and the list.

    Args:
        word: What was given.
        known: What could have been given; all of it is listed.
        more: What could have been given too, and is too much to list.
        listed: What introduces the list.
        prefix: What stands before the nearest word, such as the section of a key.

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
