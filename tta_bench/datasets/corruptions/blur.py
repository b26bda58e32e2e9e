"""Blur corruptions: defocus, glass, motion, zoom and gaussian (Hendrycks & Dietterich, ICLR 2019).

Every corruption takes a uint8 RGB image (H, W, 3), a random generator and the constants of one severity, and
returns a new image of the same shape.
"""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from tta_bench.datasets.corruptions._common import Floats, Image, Rng, integers, to_uint8, unit


def defocus_blur(image: Image, _rng: Rng, radius: float, alias_blur: float) -> Image:
    """Blur with a disk of ``radius`` pixels whose edge is softened by a gaussian of ``alias_blur`` pixels."""
    return to_uint8(cv2.filter2D(unit(image), -1, _disk(radius, alias_blur)))


def glass_blur(image: Image, rng: Rng, sigma: float, reach: int, rounds: int) -> Image:
    """Scatter pixels by up to ``reach`` pixels, ``rounds`` times, between two gaussian blurs of ``sigma``."""
    scattered = to_uint8(gaussian(unit(image), sigma))
    for _ in range(rounds):
        source = scatter(image.shape[0], image.shape[1], reach, rng)
        scattered = scattered.reshape(-1, 3)[source].reshape(image.shape)
    return to_uint8(gaussian(unit(scattered), sigma))


def motion_blur(image: Image, rng: Rng, radius: float, sigma: float) -> Image:
    """Blur along a random direction within 45 degrees of the horizontal; see ``streak``."""
    return streak(image, radius, sigma, rng.uniform(-45, 45))


def zoom_blur(image: Image, _rng: Rng, end: float, step: float) -> Image:
    """Average the image with its zooms by 1, 1 + ``step``, ... up to ``end``."""
    clean = unit(image).astype(np.float32)
    zooms = np.arange(1, end, step)
    total = clean.copy()
    for zoom in zooms:
        total += clipped_zoom(clean, float(zoom))
    return to_uint8(total / (len(zooms) + 1))


def gaussian_blur(image: Image, _rng: Rng, sigma: float) -> Image:
    """Blur with a gaussian of ``sigma`` pixels."""
    return to_uint8(gaussian(unit(image), sigma))


def gaussian(image: Floats, sigma: float) -> Floats:
    """Convolve each channel with a gaussian of ``sigma`` pixels, truncated at 4 sigmas, with edges repeated.

    Args:
        image: Array (H, W) or (H, W, C).
        sigma: Standard deviation in pixels.
    """
    # SciPy, as in the published code: values next to a threshold depend on the last bit of the sums.
    blurred: Floats = gaussian_filter(image, (sigma, sigma, 0)[: image.ndim], mode="nearest")
    return blurred


def streak(image: Image, radius: float, sigma: float, angle: float) -> Image:
    """Blur along a line as ImageMagick's ``MagickMotionBlurImage`` does.

    The kernel is the right half of a gaussian, ``2 * radius + 1`` samples along the line, each taken at the
    nearest pixel; beyond the border the edge pixel is repeated.

    Args:
        image: Array (H, W) or (H, W, C) of grey levels.
        radius: Length of the line in half pixels, as ImageMagick defines it.
        sigma: Standard deviation of the half gaussian, in pixels.
        angle: Direction in degrees, clockwise from the positive x axis.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2).astype(np.float32)
    weights /= weights.sum()
    right = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(int)
    down = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(int)

    pad = len(steps)
    padded = cv2.copyMakeBorder(image, pad, pad, pad, pad, cv2.BORDER_REPLICATE).astype(np.float32)
    height, width = image.shape[:2]
    # ImageMagick rounds to 16 bits, 257 levels per grey level, and truncates those to 8 bits.
    blurred = np.full(image.shape, 0.5 / 257, np.float32)
    for weight, x, y in zip(weights, right + pad, down + pad, strict=True):
        blurred += weight * padded[y : y + height, x : x + width]
    return np.minimum(blurred, 255).astype(np.uint8)


def clipped_zoom(array: Floats, zoom: float) -> Floats:
    """Enlarge the centre of an array by ``zoom`` >= 1, linearly, keeping its shape (H, W) or (H, W, C).

    The grid is that of ``scipy.ndimage.zoom``: the corners of the crop and of its enlargement coincide.
    """
    for axis in (0, 1):
        low, high, weight = _zoom_grid(array.shape[axis], zoom)
        weight = weight.astype(array.dtype).reshape((-1,) + (1,) * (array.ndim - 1 - axis))
        near = array.take(low, axis)
        array = near + weight * (array.take(high, axis) - near)
    return array


def _zoom_grid(size: int, zoom: float) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats]:
    """Return the two source pixels of every zoomed pixel on one axis, and the weight of the second."""
    crop = math.ceil(size / zoom)
    enlarged = round(crop * zoom)
    # The published code crops the centre first and trims the surplus of the enlargement afterwards.
    position = (np.arange(size) + (enlarged - size) // 2) * ((crop - 1) / max(enlarged - 1, 1))
    low = np.minimum(position.astype(np.intp), crop - 1)
    start = (size - crop) // 2
    return start + low, start + np.minimum(low + 1, crop - 1), position - low


@lru_cache(maxsize=32)
def _disk(radius: float, alias_blur: float) -> Floats:
    """Return the antialiased disk, of 17 x 17 pixels up to a radius of 8 and just large enough above it."""
    reach, soft = (8, 3) if radius <= 8 else (int(radius), 5)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.float32)
    softened: Floats = cv2.GaussianBlur(disk / disk.sum(), (soft, soft), alias_blur)
    return softened


def scatter(height: int, width: int, reach: int, rng: Rng) -> npt.NDArray[np.intp]:
    """Return, for each pixel of the flattened image, the pixel that lands there in one round of glass blur.

    The published loop goes from the last pixel to the first and intends to swap each with a random neighbour.
    However, it swaps views of one array, so a pixel is overwritten by its neighbour while the neighbour keeps its
    value. A pixel thus receives what its neighbour holds at that time, which has already been overwritten if the
    neighbour comes later in the image. These chains of copies are followed to their ends for all pixels at once.
    """
    here = np.arange(height * width).reshape(height, width)
    walked = np.zeros((height, width), dtype=bool)
    walked[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    rows, columns = max(height - 2 * reach, 0), max(width - 2 * reach, 0)
    # One draw of all pairs (dx, dy) gives the numbers of the published draw of one pair per pixel.
    shifts = integers(rng, -reach, reach, (rows, columns, 2))[::-1, ::-1].reshape(-1, 2)
    neighbour = here.copy()
    neighbour[walked] += shifts[:, 1] * width + shifts[:, 0]

    end = np.where((neighbour > here) & walked.ravel()[neighbour], neighbour, here).ravel()
    while not np.array_equal(further := end[end], end):
        end = further
    source: npt.NDArray[np.intp] = neighbour.ravel()[end]
    return source
