"""scenes_c's clean images: a patterned object among clutter, rendered deterministically from (split, index).

A class is a shape with a pattern, for example a striped circle. Each of ten shapes has two patterns and every pattern
occurs on at least four shapes, so that neither the outline nor the surface alone determines the class: noise and blur
hide the pattern, haze and occlusion the outline.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tta_bench.datasets.procedural.rendered import SPLITS, RenderedImages
from tta_bench.datasets.procedural.shapes import FIELDS as SHAPES

SHAPE_NAMES = ("circle", "square", "triangle", "star", "cross", "ring", "crescent", "heart", "arrow", "hexagon")

# A pattern is a wave on the plane with values between -1 and 1; its coordinates are in periods.
Pattern = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _striped(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.sin(2 * np.pi * u)


def _dotted(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 1.6 * (np.cos(2 * np.pi * u) + np.cos(2 * np.pi * v)) - 0.8


def _checked(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 1.8 * np.sin(2 * np.pi * u) * np.sin(2 * np.pi * v)


def _meshed(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 1.2 - 2.4 * np.maximum(np.cos(2 * np.pi * u), np.cos(2 * np.pi * v)) ** 2


def _plain(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.zeros_like(u)


PATTERNS: dict[str, Pattern] = {
    "striped": _striped, "dotted": _dotted, "checked": _checked, "meshed": _meshed, "plain": _plain,
}  # fmt: skip
_PAIRS = (
    ("striped", "dotted"), ("checked", "plain"), ("meshed", "striped"), ("dotted", "checked"), ("plain", "meshed"),
    ("striped", "checked"), ("dotted", "meshed"), ("plain", "striped"), ("checked", "meshed"), ("dotted", "plain"),
)  # fmt: skip
# (shape, pattern) of each class.
KINDS = tuple((shape, pattern) for shape, pair in enumerate(_PAIRS) for pattern in pair)
CLASSES = tuple(f"{pattern} {SHAPE_NAMES[shape]}" for shape, pattern in KINDS)

# Two directions of colour at right angles, in which the lightness 0.299 R + 0.587 G + 0.114 B does not change.
HUES = np.array([[0.8911, -0.4539, 0.0], [0.0774, 0.1519, -0.9854]])


def label(index: int) -> int:
    """Class of image ``index``: classes take turns, so every run of twenty images holds each class once."""
    return index % len(CLASSES)


def render(split: str, index: int, size: int = 64) -> np.ndarray:
    """Render one image: a patterned object in a random pose on a textured background, among and behind clutter.

    Args:
        split: One of ``SPLITS``; the splits share no random numbers.
        index: Image number, >= 0; its class is ``label(index)``.
        size: Height and width in pixels.

    Returns:
        Image of shape (size, size, 3), uint8, RGB.
    """
    rng = np.random.default_rng([9, SPLITS.index(split), index])
    axis = ((np.arange(size) + 0.5) / (size / 2) - 1).astype(np.float32)  # pixel centres in [-1, 1]
    y, x = np.broadcast_to(axis[:, None], (size, size)), np.broadcast_to(axis, (size, size))
    back = rng.uniform(0.12, 0.5) + rng.uniform(-0.12, 0.12, 3)
    image = back + _ripples(rng, y, x)[..., None] * rng.uniform(0.3, 1.0, 3)
    for _ in range(rng.integers(3, 7)):
        _paint_clutter(image, rng, y, x, back, scale=rng.uniform(0.08, 0.17))
    shape, pattern = KINDS[label(index)]
    scale = rng.uniform(0.46, 0.7)
    centre = rng.uniform(-0.3, 0.3, 2)
    u, v = _pose(rng, y, x, centre, scale)
    cover = _coverage(SHAPES[shape](u, v) * scale, size)
    image += cover[..., None] * (_surface(rng, pattern, u * scale, v * scale, back) - image)
    for _ in range(rng.integers(0, 3)):  # in front of the object, near its edge
        angle, near = rng.uniform(0, 2 * np.pi), rng.uniform(0.7, 1.1) * scale
        spot = centre + near * np.array([np.sin(angle), np.cos(angle)])
        _paint_clutter(image, rng, y, x, back, scale=rng.uniform(0.08, 0.18), centre=spot)
    image += rng.normal(0, rng.uniform(0.005, 0.015), (size, size, 3))  # the grain of a sensor
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _ripples(rng: np.random.Generator, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Shades (H, W) around 0: a gradient and three plane waves of growing frequency."""
    shade = np.zeros_like(x)
    for low, high, strength in ((0.2, 0.8, 0.16), (1.0, 2.5, 0.08), (2.5, 5.0, 0.05), (5.0, 9.0, 0.04)):
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        frequency = np.float32(rng.uniform(low, high) * np.pi)
        wave = np.sin(frequency * (x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))) + np.float32(phase))
        shade += np.float32(strength * rng.uniform(0.2, 1.5)) * wave
    return shade


def _pose(
    rng: np.random.Generator, y: np.ndarray, x: np.ndarray, centre: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (u, v) of an object that is shifted, rotated by up to 18 degrees, stretched and scaled; v is up."""
    stretch, angle = np.exp(rng.uniform(-0.15, 0.15)), rng.uniform(-np.pi / 10, np.pi / 10)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    dy, dx = y - np.float32(centre[0]), x - np.float32(centre[1])
    return (cos * dx + sin * dy) / np.float32(scale * stretch), (sin * dx - cos * dy) / np.float32(scale / stretch)


def _coverage(distance: np.ndarray, size: int) -> np.ndarray:
    """Fraction (H, W) of each pixel inside, from signed distances on the image's scale; edges are one pixel soft."""
    return (0.5 - distance * (size / 2)).clip(0, 1)


def _surface(rng: np.random.Generator, pattern: str, u: np.ndarray, v: np.ndarray, back: np.ndarray) -> np.ndarray:
    """Colours (H, W, 3): two shades or two hues in the pattern, the lighter one lighter than the background."""
    colour = back.mean() + rng.uniform(0.22, 0.48) + rng.uniform(-0.15, 0.15, 3)
    if rng.random() < 0.5:  # a darker second shade
        away = -rng.uniform(0.14, 0.36) * rng.uniform(0.6, 1.2, 3)
    else:  # another hue
        turn = rng.uniform(0, 2 * np.pi)
        away = rng.uniform(0.2, 0.4) * (np.cos(turn) * HUES[0] + np.sin(turn) * HUES[1])
        colour -= away / 2
    frequency, angle = rng.uniform(4.4, 5.6), rng.uniform(-0.25, 0.25)  # periods of 6 to 7 pixels
    cos, sin = np.cos(angle), np.sin(angle)
    phase = rng.uniform(0, 1, 2)
    wave = PATTERNS[pattern](frequency * (cos * u + sin * v) + phase[0], frequency * (cos * v - sin * u) + phase[1])
    light = rng.uniform(-0.15, 0.15) * u + rng.uniform(-0.15, 0.15) * v
    return colour + (0.5 + 0.5 * wave.clip(-1, 1))[..., None] * away + light[..., None]


def _paint_clutter(
    image: np.ndarray,
    rng: np.random.Generator,
    y: np.ndarray,
    x: np.ndarray,
    back: np.ndarray,
    *,
    scale: float,
    centre: np.ndarray | None = None,
) -> None:
    """Paint a bar or a blob of uniform colour into the image."""
    centre = rng.uniform(-1, 1, 2) if centre is None else centre
    u, v = _pose(rng, y, x, centre, scale)
    turn = rng.uniform(0, np.pi)
    u, v = np.cos(turn) * u + np.sin(turn) * v, np.cos(turn) * v - np.sin(turn) * u
    distance = np.maximum(np.abs(u) - 2.2, np.abs(v) - 0.35) if rng.random() < 0.5 else np.hypot(u, v) - 0.8
    cover = _coverage(distance * scale, len(image))
    image += cover[..., None] * (back + rng.uniform(-0.4, 0.4, 3) - image)


class ScenesImages(RenderedImages):
    """The first ``num_images`` images of a split.

    Args:
        split: One of ``SPLITS``.
        num_images: Number of images, a multiple of twenty for balanced classes.
        size: Height and width in pixels.

    Raises:
        ValueError: If ``num_images`` is below 1.
    """

    def __init__(self, split: str, num_images: int, size: int = 64) -> None:
        super().__init__("procedural scenes", render, label, split, num_images, size)
