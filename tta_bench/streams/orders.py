"""Named orders of the 15 corruptions, and the ten fixed probability vectors of CDC-2D."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tta_bench.streams.assemble import rng_for

STANDARD_ORDER = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The order of ImageNet-C (Hendrycks and Dietterich, ICLR 2019): noise, blur, weather, digital."""

_COTTA_10 = """
brightness pixelate gaussian_noise motion_blur zoom_blur glass_blur impulse_noise jpeg_compression
defocus_blur elastic_transform shot_noise frost snow fog contrast

jpeg_compression shot_noise zoom_blur frost contrast fog defocus_blur elastic_transform gaussian_noise
brightness glass_blur impulse_noise pixelate snow motion_blur

contrast defocus_blur gaussian_noise shot_noise snow frost glass_blur zoom_blur elastic_transform
jpeg_compression pixelate brightness impulse_noise motion_blur fog

shot_noise fog glass_blur pixelate snow elastic_transform brightness impulse_noise defocus_blur frost
contrast gaussian_noise motion_blur jpeg_compression zoom_blur

pixelate glass_blur zoom_blur snow fog impulse_noise brightness motion_blur frost jpeg_compression
gaussian_noise shot_noise contrast defocus_blur elastic_transform

motion_blur snow fog shot_noise defocus_blur contrast zoom_blur brightness frost elastic_transform
glass_blur gaussian_noise pixelate jpeg_compression impulse_noise

frost impulse_noise jpeg_compression contrast zoom_blur glass_blur pixelate snow defocus_blur motion_blur
brightness elastic_transform shot_noise fog gaussian_noise

glass_blur zoom_blur impulse_noise fog snow jpeg_compression gaussian_noise frost shot_noise brightness
contrast motion_blur pixelate defocus_blur elastic_transform

defocus_blur motion_blur zoom_blur shot_noise gaussian_noise glass_blur jpeg_compression fog contrast
pixelate frost snow brightness elastic_transform impulse_noise

contrast gaussian_noise defocus_blur zoom_blur frost glass_blur jpeg_compression fog pixelate
elastic_transform shot_noise impulse_noise snow motion_blur brightness
"""

COTTA_10_ORDERS = tuple(tuple(block.split()) for block in _COTTA_10.strip().split("\n\n"))
"""The ten random orders of CoTTA's (CVPR 2022) ImageNet-C experiment."""

NAMED_ORDERS = {"standard": STANDARD_ORDER} | {f"cotta_{k}": order for k, order in enumerate(COTTA_10_ORDERS)}


def ordered(domains: Iterable[str], order: str | Sequence[str]) -> tuple[str, ...]:
    """The domains in a named or explicit order.

    Args:
        domains: The names in the data.
        order: ``"standard"``, ``"cotta_0"`` to ``"cotta_9"``, or a list of all names in the desired order.

    Returns:
        The names in that order.

    Raises:
        ValueError: If the order is unknown, repeats a name, or does not name exactly ``domains``.

    Example:
        >>> ordered(["fog", "snow"], ["snow", "fog"])
        ('snow', 'fog')
    """
    known, names = list(domains), _lookup(order)
    missing = [name for name in names if name not in known]
    extra = [name for name in known if name not in names]
    if missing or extra:
        raise ValueError(
            f"order {order!r} does not match the domains: "
            f"no data for {missing or 'none'}, missing from the order {extra or 'none'}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"order {order!r} names a domain twice")
    return names


def fixed_probabilities(name: str, num_domains: int) -> list[float]:
    """One of ten fixed random positive vectors; entry i is the same for any number of domains.

    Args:
        name: ``"R1"`` to ``"R10"``.
        num_domains: Length of the vector.

    Returns:
        Relative probabilities in (0, 1], not normalised.

    Raises:
        ValueError: If the name is unknown.

    Source: DPCore (ICML 2025), appendix "CDC with Other Distributions", which does not list its vectors.
    """
    if name not in {f"R{k}" for k in range(1, 11)}:
        raise ValueError(f"probabilities must be 'uniform', 'R1' to 'R10', or positive numbers, not {name!r}")
    return [1.0 - u for u in rng_for(0, "cdc_2d probabilities", name).random(num_domains).tolist()]


def _lookup(order: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(order, str):
        return tuple(order)
    if order not in NAMED_ORDERS:
        raise ValueError(f"unknown order {order!r}: choose from {', '.join(NAMED_ORDERS)}, or list the domains")
    return NAMED_ORDERS[order]
