"""Names of corrupted domains: sets, groups, and single corruptions with an optional severity."""

from __future__ import annotations

from collections.abc import Sequence

from tta_bench.datasets.corruptions import COMMON, CORRUPTIONS, GROUPS, VALIDATION
from tta_bench.datasets.corruptions.severities import FAMILIES
from tta_bench.suggestions import did_you_mean

SETS = {"common": COMMON, "validation": VALIDATION}


def domain_names(domains: str | Sequence[str]) -> tuple[str, ...]:
    """Expand a name or a list of names to domains.

    Args:
        domains: ``common`` (the 15), ``validation`` (the 4), a group such as ``noise``, or a corruption, optionally
            with its own severity as in ``fog/3``; ``clean`` is allowed. A list is their union, each domain once.

    Raises:
        ValueError: If the list is empty, or a name is not a corruption.

    Example:
        >>> domain_names("noise")
        ('gaussian_noise', 'shot_noise', 'impulse_noise')
    """
    words = (domains,) if isinstance(domains, str) else domains
    sets: dict[str, Sequence[str]] = {**SETS, **GROUPS}
    names = tuple(dict.fromkeys(name for word in words for name in sets.get(word, (word,))))
    known = [*CORRUPTIONS, "clean"]
    if not names:
        raise ValueError("dataset.domains is empty: name at least one corruption")
    for name in names:
        corruption, slash, severity = name.partition("/")
        if slash and (severity not in ("1", "2", "3", "4", "5") or corruption == "clean"):
            raise ValueError(f"{name!r} is not a corruption with a severity from 1 to 5, such as 'fog/3'")
        if corruption not in known:
            hint = did_you_mean(corruption, [*sets, *known])
            raise ValueError(f"there is no corruption {name!r}{hint}")
    return names


def check_severity(severity: int) -> None:
    """Check that a severity is one of the published ones.

    Raises:
        ValueError: If it is not 1 to 5.
    """
    if severity not in range(1, 6):
        raise ValueError(f"dataset.severity must be 1, 2, 3, 4 or 5, got {severity}")


def check_family(family: str) -> None:
    """Check that a table of constants exists.

    Raises:
        ValueError: If it does not.
    """
    if family not in FAMILIES:
        raise ValueError(f"dataset.family {family!r} does not exist{did_you_mean(family, FAMILIES)}")


def corruption_and_severity(domain: str, severity: int) -> tuple[str, int]:
    """Split a domain into its corruption and its severity, by default ``severity``.

    Example:
        >>> corruption_and_severity("fog/3", 5), corruption_and_severity("fog", 5)
        (('fog', 3), ('fog', 5))
    """
    corruption, _, own = domain.partition("/")
    return corruption, int(own or severity)
