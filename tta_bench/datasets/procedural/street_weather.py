"""streets_c's domains: renders a street in fog, at night, in rain and in snow from its daytime scene."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from tta_bench.datasets.procedural.street_scenes import ROAD, SIDEWALK, SKY, VEGETATION, Scene

Weather = Callable[[Scene, np.random.Generator], np.ndarray]


def day(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """The scene as it is, with a little camera noise."""
    return scene.image + rng.normal(0, 0.01, scene.image.shape)


def fog(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Airlight that replaces light from far away (Koschmieder's law)."""
    thick = _veil(scene, rng, scene.image, visibility=rng.uniform(20, 40), air=rng.uniform(0.68, 0.82))
    return thick + rng.normal(0, 0.01, thick.shape)


def night(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Little light except from windows, lamps and headlights, and a noisy camera."""
    sky = (scene.labels == SKY)[..., None]
    image = np.where(sky, 0.04 + 0.03 * scene.image, scene.image * rng.uniform(0.22, 0.36)) * [0.85, 0.92, 1.15]
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    spread = (np.abs(columns - image.shape[1] / 2) / (0.2 * image.shape[1])) ** 2
    beam = np.exp(-spread - (scene.depth.clip(0, 200) / 18)) * (rows > scene.horizon)
    image = image + scene.image * 1.1 * beam[..., None]
    glow = cv2.GaussianBlur(scene.lights, (0, 0), 5) * 2.0 + cv2.GaussianBlur(scene.lights, (0, 0), 1)
    image = image + scene.lights + glow
    return image + rng.normal(0, 0.03, image.shape) + rng.normal(0, 0.02, (*image.shape[:2], 1))


def rain(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Grey light, reflections on the road, streaks, and drops on the lens."""
    height, width = scene.labels.shape
    grey = scene.image.mean(axis=2, keepdims=True)
    image = (0.45 * scene.image + 0.55 * grey) * rng.uniform(0.50, 0.68)
    image[scene.labels == SKY] = rng.uniform(0.55, 0.7)
    mirrored = (2 * scene.horizon + 4 - np.arange(height)).clip(0, height - 1).astype(int)
    wet = np.isin(scene.labels, (ROAD, SIDEWALK))[..., None] * rng.uniform(0.4, 0.65)
    image = image * (1 - wet) + wet * cv2.GaussianBlur(image[mirrored], (0, 0), 1.5)
    image = _veil(scene, rng, image, visibility=rng.uniform(60, 110), air=0.6)
    length, slant = int(rng.integers(7, 13)), rng.uniform(-0.35, 0.35)
    kernel = np.zeros((length, length), dtype=np.float32)
    for step in range(length):
        kernel[step, int(np.clip(length / 2 + slant * (step - length / 2), 0, length - 1))] = 2 / length
    drops = (rng.random((height, width)) < 0.02).astype(np.float32)
    image = image + 0.55 * cv2.filter2D(drops, -1, kernel)[..., None]
    smeared = cv2.GaussianBlur(image, (0, 0), 4)
    on_lens = (rng.random((height, width)) < 0.0012).astype(np.float32)
    on_lens = (cv2.GaussianBlur(on_lens, (0, 0), 2.5) * 40).clip(0, 1)[..., None]
    return image * (1 - on_lens) + on_lens * (smeared + 0.06) + rng.normal(0, 0.015, image.shape)


def snow(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """White ground with tyre tracks, white trees, pale air, and flakes near and far."""
    height, width = scene.labels.shape
    coarse = rng.normal(0, 1, (height // 5, width // 20)).astype(np.float32)  # flat on the ground: wide and low
    patches = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cover = np.zeros((height, width))
    for kind, amount in ((ROAD, rng.uniform(0.3, 0.75)), (SIDEWALK, 0.85), (VEGETATION, 0.5)):
        cover[scene.labels == kind] = amount
    cover = (cover * (1 + 0.25 * patches)).clip(0, 0.95)[..., None]
    image = scene.image * (1 - cover) + cover * np.array([0.86, 0.88, 0.92])
    image[scene.labels == SKY] = rng.uniform(0.72, 0.85)
    image = _veil(scene, rng, image, visibility=rng.uniform(45, 80), air=0.78)
    for share, sigma, strength in ((0.02, 0.6, 1.6), (0.004, 1.2, 5.0), (0.0005, 2.4, 14.0)):
        flakes = cv2.GaussianBlur((rng.random((height, width)) < share).astype(np.float32), (0, 0), sigma)
        opacity = (strength * flakes).clip(0, 0.9)[..., None]
        image = image * (1 - opacity) + opacity * 0.96
    return image + rng.normal(0, 0.01, image.shape)


def _veil(scene: Scene, rng: np.random.Generator, image: np.ndarray, visibility: float, air: float) -> np.ndarray:
    """Transmitted light, exp(-depth / visibility), plus airlight for the rest; denser in some places than others."""
    height, width = scene.labels.shape
    banks = cv2.resize(rng.normal(1, 0.12, (3, 5)).astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    through = np.exp(-scene.depth.clip(0, 400) / visibility * banks)[..., None]
    return image * through + (1 - through) * air


WEATHER: dict[str, Weather] = {"day": day, "fog": fog, "night": night, "rain": rain, "snow": snow}
