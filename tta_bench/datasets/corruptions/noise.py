"""Noise corruptions: gaussian, shot, impulse and speckle (Hendrycks & Dietterich, ICLR 2019).

Every function takes a uint8 RGB image (H, W, 3), a random generator and the constants of one severity, and
returns a new image of the same shape.
"""

from __future__ import annotations

from tta_bench.datasets.corruptions._common import Image, Rng, to_uint8, unit


def gaussian_noise(image: Image, rng: Rng, sigma: float) -> Image:
    """Add white noise, as in low light; ``sigma`` is its deviation on the unit scale."""
    return to_uint8(unit(image) + rng.normal(0.0, sigma, image.shape))


def shot_noise(image: Image, rng: Rng, photons: float) -> Image:
    """Add Poisson noise; a white pixel receives ``photons`` photons on average."""
    return to_uint8(rng.poisson(unit(image) * photons) / photons)


def impulse_noise(image: Image, rng: Rng, amount: float) -> Image:
    """Set a fraction ``amount`` of all channel values to black or white, with equal probability."""
    flipped = rng.random(image.shape) <= amount
    salt = rng.random(image.shape) <= 0.5
    noisy: Image = image.copy()
    noisy[flipped & salt] = 255
    noisy[flipped & ~salt] = 0
    return noisy


def speckle_noise(image: Image, rng: Rng, sigma: float) -> Image:
    """Add noise that grows with the brightness of the pixel; ``sigma`` is its relative deviation."""
    clean = unit(image)
    return to_uint8(clean + clean * rng.normal(0.0, sigma, image.shape))
