"""The published severity constants of the 19 corruptions, for three image families.

Source: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019; repository hendrycks/robustness, one table per script: ``imagenet`` (224 pixels),
``cifar`` (32 pixels) and ``tiny`` (64 pixels). A family is a table of constants, not an image size: the
constants in pixels (radii, sigmas) are not rescaled when an image has another size.
"""

from __future__ import annotations

from typing import TypeAlias

Levels: TypeAlias = tuple[tuple[float, ...], ...]

FAMILIES = ("imagenet", "cifar", "tiny")


def _each(*values: float) -> Levels:
    """Constants of a corruption with one constant per severity."""
    return tuple((value,) for value in values)


def _then(levels: Levels, *constants: float) -> Levels:
    """Append the same constants at every severity."""
    return tuple((*level, *constants) for level in levels)


# Name -> family -> five tuples, the arguments that follow (image, rng) in the function of that name.
SEVERITIES: dict[str, dict[str, Levels]] = {
    "gaussian_noise": {  # sigma
        "imagenet": _each(0.08, 0.12, 0.18, 0.26, 0.38),
        "cifar": _each(0.04, 0.06, 0.08, 0.09, 0.10),
        "tiny": _each(0.04, 0.08, 0.12, 0.15, 0.18),
    },
    "shot_noise": {  # photons
        "imagenet": _each(60, 25, 12, 5, 3),
        "cifar": _each(500, 250, 100, 75, 50),
        "tiny": _each(250, 100, 50, 30, 15),
    },
    "impulse_noise": {  # amount
        "imagenet": _each(0.03, 0.06, 0.09, 0.17, 0.27),
        "cifar": _each(0.01, 0.02, 0.03, 0.05, 0.07),
        "tiny": _each(0.01, 0.02, 0.05, 0.08, 0.14),
    },
    "speckle_noise": {  # sigma
        "imagenet": _each(0.15, 0.2, 0.35, 0.45, 0.6),
        "cifar": _each(0.06, 0.1, 0.12, 0.16, 0.2),
        "tiny": _each(0.15, 0.2, 0.25, 0.3, 0.35),
    },
    "defocus_blur": {  # radius, alias_blur
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "tiny": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    },
    "glass_blur": {  # sigma, reach, rounds
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "tiny": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    },
    "motion_blur": {  # radius, sigma
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "tiny": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    },
    "zoom_blur": {  # end and step of numpy.arange(1, end, step)
        "imagenet": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "cifar": _then(_each(1.06, 1.11, 1.16, 1.21, 1.26), 0.01),
        "tiny": _then(_each(1.06, 1.11, 1.16, 1.21, 1.26), 0.01),
    },
    "gaussian_blur": {  # sigma
        "imagenet": _each(1, 2, 3, 4, 6),
        "cifar": _each(0.4, 0.6, 0.7, 0.8, 1),
        "tiny": _each(0.5, 0.75, 1, 1.25, 1.5),
    },
    "snow": {  # mean, std, zoom, threshold, radius, sigma, keep
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "tiny": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
    },
    "frost": {  # image_weight, frost_weight, texture_scale
        "imagenet": _then(((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)), 1.0),
        "cifar": _then(((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)), 0.2),
        "tiny": _then(((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)), 0.3),
    },
    "fog": {  # amount, decay
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "tiny": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    },
    "spatter": {  # mean, std, sigma, threshold, strength (water) or softness (mud), mud
        "imagenet": (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
        "cifar": (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        "tiny": (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
    },
    "brightness": {  # amount
        "imagenet": _each(0.1, 0.2, 0.3, 0.4, 0.5),
        "cifar": _each(0.05, 0.1, 0.15, 0.2, 0.3),
        "tiny": _each(0.1, 0.2, 0.3, 0.4, 0.5),
    },
    "contrast": {  # factor
        "imagenet": _each(0.4, 0.3, 0.2, 0.1, 0.05),
        "cifar": _each(0.75, 0.5, 0.4, 0.3, 0.15),
        "tiny": _each(0.4, 0.3, 0.2, 0.1, 0.05),
    },
    # displacement, sigma and affine jitter in units of S, then S as a multiple of the image's shorter side.
    # The published ImageNet script has S = 244 for images of 224 pixels, an error that is now part of the benchmark.
    "elastic_transform": {
        "imagenet": _then(
            ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
            244 / 224,
        ),
        "cifar": _then(
            ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)), 1.0
        ),
        "tiny": _then(((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)), 1.0),
    },
    "pixelate": {  # factor
        "imagenet": _each(0.6, 0.5, 0.4, 0.3, 0.25),
        "cifar": _each(0.95, 0.9, 0.85, 0.75, 0.65),
        "tiny": _each(0.9, 0.8, 0.7, 0.6, 0.5),
    },
    "jpeg_compression": {  # quality
        "imagenet": _each(25, 18, 15, 10, 7),
        "cifar": _each(80, 65, 58, 50, 40),
        "tiny": _each(65, 58, 50, 40, 25),
    },
    "saturate": {  # factor, offset
        "imagenet": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        "cifar": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        "tiny": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
    },
}
