"""shapes_c's clean images: ten procedural shapes, rendered deterministically from (split, index)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tta_bench.datasets.procedural.rendered import SPLITS, RenderedImages

CLASSES = (
    "circle", "square", "triangle", "star", "cross", "ring", "crescent", "heart", "arrow", "hexagon",
)  # fmt: skip

# A shape is a signed distance on the plane: negative inside, about 1 unit in radius, roughly Euclidean near its edge.
Field = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _polygon(corners: int, radius: float = 1.0) -> Field:
    apothem = radius * np.cos(np.pi / corners)

    def field(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        sector = 2 * np.pi / corners
        angle = (np.arctan2(x, y) + sector / 2) % sector - sector / 2
        return np.hypot(x, y) * np.cos(angle) - apothem

    return field


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    sector = 2 * np.pi / 5
    angle = np.abs((np.arctan2(x, y) + sector / 2) % sector - sector / 2)  # 0 at a tip, sector / 2 in a valley
    r = np.hypot(x, y)
    tip, valley = np.array([0.0, 1.1]), 0.48 * np.array([np.sin(sector / 2), np.cos(sector / 2)])
    edge = valley - tip
    normal = np.array([edge[1], -edge[0]]) / -np.hypot(*edge)
    return (r * np.sin(angle) - tip[0]) * normal[0] + (r * np.cos(angle) - tip[1]) * normal[1]


def _box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.minimum(_box(x, y, 1.0, 0.32), _box(x, y, 0.32, 1.0))


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.hypot(x, y) - 0.75) - 0.24


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.hypot(x, y) - 1.0, 0.82 - np.hypot(x - 0.45, y))


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    u, v = np.abs(x), y + 0.85  # tip at the bottom
    lobe = np.hypot(u - 0.5, v - 1.2) - 0.55
    cone = np.maximum((u - v * 0.95) * 0.72, v - 1.25)
    return np.minimum(lobe, cone)


def _arrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    head = np.maximum((np.abs(x) * 1.2 + y - 1.0) * 0.64, 0.05 - y)
    shaft = _box(x, y + 0.5, 0.28, 0.6)
    return np.minimum(head, shaft)


FIELDS: tuple[Field, ...] = (
    lambda x, y: np.hypot(x, y) - 0.9,
    _polygon(4, 1.15),
    _polygon(3, 1.2),
    _star,
    _cross,
    _ring,
    _crescent,
    _heart,
    _arrow,
    _polygon(6, 1.0),
)


def label(index: int) -> int:
    """Class of image ``index``: classes take turns, so every run of ten images holds each class once."""
    return index % len(CLASSES)


def render(split: str, index: int, size: int = 64) -> np.ndarray:
    """Render one image: a textured shape in a random pose on a textured background.

    Args:
        split: One of ``SPLITS``; the splits share no random numbers.
        index: Image number, >= 0; its class is ``label(index)``.
        size: Height and width in pixels.

    Returns:
        Image of shape (size, size, 3), uint8, RGB.
    """
    rng = np.random.default_rng([SPLITS.index(split), index])
    rows, columns = np.mgrid[:size, :size] / (size / 2) - 1 + 1 / size  # pixel centres in [-1, 1]
    back, front = _two_colors(rng)
    background = _texture(rng, rows, columns, back)
    foreground = _texture(rng, rows, columns, front)
    mask = _mask(rng, label(index), rows, columns, pixel=2 / size)[..., None]
    image = background + mask * (foreground - background) + rng.normal(0, 0.01, (size, size, 1))
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _two_colors(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Background and shape colour, at least 0.35 apart so that every shape can be seen."""
    back = rng.uniform(0.1, 0.9, 3)
    while True:
        front = rng.uniform(0.05, 0.95, 3)
        if np.linalg.norm(front - back) > 0.35:
            return back, front


def _texture(rng: np.random.Generator, y: np.ndarray, x: np.ndarray, color: np.ndarray) -> np.ndarray:
    """A colour field (H, W, 3): a gradient and two plane waves over ``color``."""
    shade = np.zeros_like(x)
    for low, high, strength in ((0.3, 1.0, 0.10), (2.0, 5.0, 0.06), (5.0, 12.0, 0.05)):
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        frequency = rng.uniform(low, high) * np.pi
        wave = np.sin(frequency * (x * np.cos(angle) + y * np.sin(angle)) + phase)
        shade += strength * rng.uniform(0, 1.5) * wave
    return color + shade[..., None] * rng.uniform(0.5, 1.0, 3)


def _mask(rng: np.random.Generator, kind: int, y: np.ndarray, x: np.ndarray, pixel: float) -> np.ndarray:
    """Coverage (H, W) in [0, 1] of the shape in a random pose, with edges about one pixel soft."""
    scale = rng.uniform(0.38, 0.68)
    stretch = np.exp(rng.uniform(-0.15, 0.15))
    angle = rng.uniform(-np.pi / 5, np.pi / 5)
    cy, cx = rng.uniform(-1, 1, 2) * (0.9 - scale)
    u = (np.cos(angle) * (x - cx) + np.sin(angle) * (y - cy)) / (scale * stretch)
    v = (np.sin(angle) * (x - cx) - np.cos(angle) * (y - cy)) / (scale / stretch)  # v grows upwards
    return (0.5 - FIELDS[kind](u, v) * scale / pixel).clip(0, 1)


class ShapesImages(RenderedImages):
    """The first ``num_images`` images of a split.

    Args:
        split: One of ``SPLITS``.
        num_images: Number of images, a multiple of ten for balanced classes.
        size: Height and width in pixels.

    Raises:
        ValueError: If ``num_images`` is below 1.
    """

    def __init__(self, split: str, num_images: int, size: int = 64) -> None:
        super().__init__("procedural shapes", render, label, split, num_images, size)
