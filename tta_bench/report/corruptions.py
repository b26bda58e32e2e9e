"""The 15 corruptions as papers print them: four groups in a fixed order, with short names."""

from __future__ import annotations

from collections.abc import Iterable

CORRUPTION_GROUPS = {
    "Noise": {"gaussian_noise": "Gauss.", "shot_noise": "Shot", "impulse_noise": "Impulse"},
    "Blur": {"defocus_blur": "Defocus", "glass_blur": "Glass", "motion_blur": "Motion", "zoom_blur": "Zoom"},
    "Weather": {"snow": "Snow", "frost": "Frost", "fog": "Fog", "brightness": "Bright"},
    "Digital": {
        "contrast": "Contrast",
        "elastic_transform": "Elastic",
        "pixelate": "Pixel",
        "jpeg_compression": "JPEG",
    },
}
"""Source: Hendrycks and Dietterich, ICLR 2019; column heads as in DPCore's tables (ICML 2025)."""


def domain_groups(domains: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Group domains as (heading, {name: short name}).

    If all domains are among the 15 corruptions, they have the order and headings of papers, whatever the given order.
    Otherwise all domains keep the given order, in one group without a heading.

    Example:
        >>> domain_groups(["fog", "shot_noise"])
        [('Noise', {'shot_noise': 'Shot'}), ('Weather', {'fog': 'Fog'})]
        >>> domain_groups(["night", "fog"])
        [('', {'night': 'night', 'fog': 'fog'})]
    """
    names = list(domains)
    known = {name for group in CORRUPTION_GROUPS.values() for name in group}
    if not known.issuperset(names):
        return [("", {name: name for name in names})]
    kept = [(head, {n: s for n, s in group.items() if n in names}) for head, group in CORRUPTION_GROUPS.items()]
    return [(head, group) for head, group in kept if group]
