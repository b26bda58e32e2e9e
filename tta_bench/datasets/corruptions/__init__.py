"""The 15 common corruptions and 4 validation corruptions of ImageNet-C, as pure functions on uint8 images.

Source: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019; repository hendrycks/robustness. ``corrupt`` is the entry point; the registry
``CORRUPTIONS`` holds functions ``f(image, rng, *constants)``, with the constants in ``SEVERITIES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tta_bench.datasets.corruptions._common import Image, Rng
from tta_bench.datasets.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from tta_bench.datasets.corruptions.digital import contrast, elastic_transform, jpeg_compression, pixelate, saturate
from tta_bench.datasets.corruptions.frost import generate_frost_textures, load_frost_textures, name_frost_textures
from tta_bench.datasets.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from tta_bench.datasets.corruptions.severities import FAMILIES, SEVERITIES
from tta_bench.datasets.corruptions.weather import brightness, fog, frost, snow, spatter
from tta_bench.suggestions import did_you_mean

__all__ = [
    "COMMON",
    "CORRUPTIONS",
    "FAMILIES",
    "GROUPS",
    "SEVERITIES",
    "VALIDATION",
    "corrupt",
    "generate_frost_textures",
    "load_frost_textures",
    "name_frost_textures",
]

CORRUPTIONS: dict[str, Callable[..., Image]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "spatter": spatter,
    "saturate": saturate,
}

# The benchmark's four groups; in this order they are the standard order of its 15 corruptions.
GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
COMMON: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)
VALIDATION = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


def corrupt(
    image: Image,
    name: str,
    severity: int,
    *,
    family: str = "imagenet",
    rng: Rng,
    frost_textures: Sequence[Image] | None = None,
) -> Image:
    """Corrupt one image.

    Args:
        image: RGB image (H, W, 3), uint8, of any size; it is not modified.
        name: A key of ``CORRUPTIONS``.
        severity: From 1 (mild) to 5 (strong).
        family: The table of constants, one of ``FAMILIES``: for images of about 224, 32 or 64 pixels.
        rng: Source of randomness. A ``RandomState`` seeded like the global generator of the published scripts
            reproduces their numbers; a ``Generator`` gives different numbers of the same distribution.
        frost_textures: Textures for frost, from ``load_frost_textures``; None uses the generated ones.

    Returns:
        A new uint8 array of the same shape.

    Raises:
        ValueError: If the name, severity, family or generator is unknown, or the image is not uint8 RGB.
    """
    _check(image, name, severity, family, rng)
    constants = SEVERITIES[name][family][severity - 1]
    extra = {"textures": frost_textures} if name == "frost" else {}
    return CORRUPTIONS[name](image, rng, *constants, **extra)


def _check(image: Image, name: str, severity: int, family: str, rng: Rng) -> None:
    """Check the arguments of ``corrupt``."""
    for kind, word, known in (("corruption", name, CORRUPTIONS), ("family", family, FAMILIES)):
        if word not in known:
            raise ValueError(f"there is no {kind} {word!r}{did_you_mean(word, known)}")
    if not isinstance(severity, int | np.integer) or not 1 <= severity <= 5:
        raise ValueError(f"Severity must be an integer from 1 to 5, not {severity!r}.")
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        raise ValueError(f"The image must be a uint8 array, not {getattr(image, 'dtype', type(image))}.")
    if image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(f"The image must have shape (height, width, 3), not {image.shape}.")
    if not isinstance(rng, np.random.Generator | np.random.RandomState):
        raise ValueError(f"rng must be a numpy Generator or RandomState, not {type(rng).__name__}.")
