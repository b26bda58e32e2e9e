"""Digital corruptions: contrast, elastic transform, pixelate, JPEG and saturate.

Hendrycks & Dietterich, ICLR 2019. Every corruption takes a uint8 RGB image (H, W, 3), a random generator and
the constants of one severity, and returns a new image of the same shape.
"""

from __future__ import annotations

from io import BytesIO

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from scipy.fft import dctn, idctn
from scipy.ndimage import map_coordinates

from tta_bench.datasets.corruptions._common import Floats, Image, Rng, to_uint8, unit


def contrast(image: Image, _rng: Rng, factor: float) -> Image:
    """Scale the distance of every pixel to the mean colour by ``factor``."""
    clean = unit(image)
    mean = clean.mean(axis=(0, 1), keepdims=True)
    return to_uint8((clean - mean) * factor + mean)


def elastic_transform(image: Image, rng: Rng, displacement: float, sigma: float, jitter: float, scale: float) -> Image:
    """Warp the image by a random affine map and then by a smooth random field.

    The published constants are multiples of a length S, fixed per family for images of the family's size.
    Here S is ``scale`` times the shorter side: the published S at that size, and in proportion elsewhere.

    Args:
        image: Array (H, W, 3) of grey levels.
        rng: Source of the affine map, then of the horizontal and the vertical field.
        displacement: Amplitude of the field before it is smoothed, in units of S.
        sigma: Standard deviation of the smoothing, in units of S.
        jitter: Largest shift of the three points that define the affine map, in units of S.
        scale: S divided by the shorter side.
    """
    height, width = image.shape[:2]
    length = scale * min(height, width)
    warped = _random_affine(unit(image).astype(np.float32), jitter * length, rng)
    right, down = (
        displacement * length * smooth_field(rng.uniform(-1, 1, (height, width)), sigma * length) for _ in range(2)
    )
    rows, columns = np.mgrid[:height, :width]
    at = (rows + down, columns + right)
    channels = [map_coordinates(warped[..., c], at, order=1, mode="reflect") for c in range(3)]
    return to_uint8(np.stack(channels, axis=-1))


def pixelate(image: Image, _rng: Rng, factor: float) -> Image:
    """Shrink the image to ``factor`` of its sides and enlarge it again, both by box averages."""
    height, width = image.shape[:2]
    small = (max(int(width * factor), 1), max(int(height * factor), 1))
    box = Pillow.Resampling.BOX
    return np.array(Pillow.fromarray(image).resize(small, box).resize((width, height), box))


def jpeg_compression(image: Image, _rng: Rng, quality: int) -> Image:
    """Encode and decode the image as JPEG of the given ``quality``."""
    file = BytesIO()
    Pillow.fromarray(image).save(file, "JPEG", quality=quality)
    return np.array(Pillow.open(file))


def saturate(image: Image, _rng: Rng, factor: float, offset: float) -> Image:
    """Map the saturation channel s of HSV to ``factor * s + offset``, clipped to ``[0, 1]``.

    With hue and value fixed, a channel is value * (1 - s * depth), where depth runs from 0 in the largest
    channel to 1 in the smallest. Grey has the hue of red, so ``offset`` turns it reddish, as published.
    """
    clean = unit(image)
    value = clean.max(axis=2, keepdims=True)
    spread = value - clean.min(axis=2, keepdims=True)
    grey = spread == 0
    depth = np.where(grey, [0.0, 1.0, 1.0], (value - clean) / np.where(grey, 1.0, spread))
    saturation = spread / np.where(value > 0, value, 1.0)
    return to_uint8(value * (1 - np.clip(factor * saturation + offset, 0, 1) * depth))


def _random_affine(image: Floats, jitter: float, rng: Rng) -> Floats:
    """Move three points around the centre by up to ``jitter`` pixels and warp the image with them."""
    height, width = image.shape[:2]
    # OpenCV reads these (row, column) pairs as (x, y); so does the published code, which has only square images.
    centre = np.array([height, width], dtype=np.float32) // 2
    arm = max(min(height, width) // 3, 1)
    points = centre + arm * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    moved = points + rng.uniform(-jitter, jitter, points.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(points, moved)
    warped: Floats = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    return warped


def smooth_field(field: npt.NDArray[np.float64], sigma: float) -> npt.NDArray[np.float64]:
    """Gaussian filter of a field (H, W) cut at 3 sigmas, mirrored at its borders.

    The mirrored field repeats with twice the field's size, so the filter is a product in the cosine domain.
    Its cost is almost independent of sigma, which can be as large as the image here.
    """
    response = np.multiply.outer(*(_cosine_response(size, sigma) for size in field.shape))
    smoothed: npt.NDArray[np.float64] = idctn(dctn(field) * response)
    return smoothed


def _cosine_response(size: int, sigma: float) -> npt.NDArray[np.float64]:
    """Return the response of the gaussian kernel to each of the ``size`` cosines of one axis."""
    radius = int(3 * sigma + 0.5)
    steps = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (steps / max(sigma, 1e-12)) ** 2)
    wrapped = np.bincount(steps % (2 * size), kernel / kernel.sum(), minlength=2 * size)
    return np.fft.rfft(wrapped).real[:size]
