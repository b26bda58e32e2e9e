"""Weather corruptions: snow, frost, fog, brightness and spatter (Hendrycks & Dietterich, ICLR 2019).

Every function takes a uint8 RGB image (H, W, 3), a random generator and the constants of one severity, and
returns a new image of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from tta_bench.datasets.corruptions._common import Floats, Image, Rng, integers, to_uint8, unit
from tta_bench.datasets.corruptions.blur import clipped_zoom, gaussian, streak
from tta_bench.datasets.corruptions.frost import generate_frost_textures

_WATER = np.array([175, 238, 238]) / 255.0  # pale turquoise
_MUD = np.array([63, 42, 20]) / 255.0


def snow(
    image: Image,
    rng: Rng,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Image:
    """Whiten the image and let flakes fall on it.

    Args:
        image: Array (H, W, 3) of grey levels.
        rng: Source of the flakes, then of the direction of their fall.
        mean: Mean of the normal field that becomes flakes.
        std: Standard deviation of that field.
        zoom: Enlargement of the field, which determines the size of the flakes.
        threshold: Field values below it are free of snow.
        radius: Reach of the motion blur of the flakes.
        sigma: Standard deviation of that blur.
        keep: Weight of the image against its whitened copy.
    """
    field = clipped_zoom(rng.normal(mean, std, image.shape[:2]), zoom)
    flakes = to_uint8(np.where(field < threshold, 0.0, field))
    layer = streak(flakes, radius, sigma, rng.uniform(-135, -45)) / 255.0

    clean = unit(image).astype(np.float32)
    grey = clean @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    whitened = np.maximum(clean, grey[..., None] * 1.5 + 0.5)
    return to_uint8(keep * clean + (1 - keep) * whitened + (layer + layer[::-1, ::-1])[..., None])


def frost(
    image: Image,
    rng: Rng,
    image_weight: float,
    frost_weight: float,
    texture_scale: float,
    textures: Sequence[Image] | None = None,
) -> Image:
    """Lay a random crop of a random ice texture over the image.

    Args:
        image: Array (H, W, 3) of grey levels.
        rng: Source of the texture, then of the row and the column of its crop.
        image_weight: Weight of the image.
        frost_weight: Weight of the texture.
        texture_scale: Scale factor of the texture; a texture too small for the crop is enlarged to fit.
        textures: RGB textures of any size; None uses the generated ones.
    """
    textures = generate_frost_textures() if textures is None else textures
    texture = textures[int(integers(rng, 0, len(textures)))]
    height, width = image.shape[:2]
    # One pixel more than the image, because the published offsets are drawn from a half-open interval.
    scale = max(texture_scale, (height + 1) / texture.shape[0], (width + 1) / texture.shape[1])
    if scale != 1:
        texture = cv2.resize(texture, None, fx=scale, fy=scale)
    top = int(integers(rng, 0, texture.shape[0] - height))
    left = int(integers(rng, 0, texture.shape[1] - width))
    crop = texture[top : top + height, left : left + width]
    return np.clip(image_weight * image + frost_weight * crop, 0, 255).astype(np.uint8)


def fog(image: Image, rng: Rng, amount: float, decay: float) -> Image:
    """Add ``amount`` of a cloud whose detail decays by ``decay`` per octave; the maximum is preserved."""
    clean = unit(image)
    brightest = clean.max()
    height, width = image.shape[:2]
    clean += amount * plasma(max(height, width), decay, rng)[:height, :width, None]
    return to_uint8(clean * brightest / (brightest + amount))


def brightness(image: Image, _rng: Rng, amount: float) -> Image:
    """Raise the value channel of HSV by ``amount``.

    Colours of one hue and saturation are multiples of each other, so the pixel is scaled with its value, the largest
    channel, without converting to HSV. Black becomes grey.
    """
    clean = unit(image)
    value = clean.max(axis=2, keepdims=True)
    raised = np.minimum(value + amount, 1.0)
    # One minus the saturation, instead of the plain ratio, rounds like the published conversion through HSV.
    return to_uint8(raised * (1 - (value - clean) / np.where(value > 0, value, 1.0)))


def spatter(
    image: Image,
    rng: Rng,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
) -> Image:
    """Splash drops of water or mud on the image.

    Args:
        image: Array (H, W, 3) of grey levels.
        rng: Source of the drops.
        mean: Mean of the normal field that becomes drops.
        std: Standard deviation of that field.
        sigma: Blur of the field, which determines the size of the drops.
        threshold: Field values below it are dry.
        strength: Opacity of water; for mud, the blur of a drop's edge in pixels.
        mud: Whether the drops are of mud (true) or of water (false).
    """
    liquid = gaussian(rng.normal(mean, std, image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    clean = unit(image)
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float32), strength)
        cover = np.where(cover < 0.8, 0.0, cover)[..., None]
        return to_uint8(clean * (1 - cover) + _MUD * cover)
    return to_uint8(clean + strength * _water_drops(liquid)[..., None] * _WATER)


def _water_drops(liquid: Floats) -> Floats:
    """Shade drops by the distance to their edge, so that they look lit from one side; the maximum is 1."""
    depth = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(depth, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    relief = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, emboss), (3, 3))
    drops: Floats = depth * relief.astype(np.float32)
    # A small image may have no drops; the published code then divides zero by zero.
    return drops / (drops.max() or 1.0)


def plasma(side: int, decay: float, rng: Rng) -> npt.NDArray[np.float64]:
    """Return a cloud in ``[0, 1]`` by the diamond-square method on a torus.

    Args:
        side: Least side length; the map has the next power of two.
        decay: Factor by which the random part shrinks from one octave to the next.
        rng: Source of the cloud.
    """
    size = max(1 << (side - 1).bit_length(), 2)
    cloud = np.zeros((size, size))
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]

        def wobbled(total: Floats, wobble: float = wobble) -> Floats:
            # The published code applies the amplitude twice, which squares it; this is part of the look.
            return total / 4 + wobble * rng.uniform(-wobble, wobble, total.shape)

        pairs = corners + np.roll(corners, -1, axis=0)
        centres = wobbled(pairs + np.roll(pairs, -1, axis=1))
        cloud[half::step, half::step] = centres
        across = corners + np.roll(corners, -1, axis=1)
        cloud[::step, half::step] = wobbled(centres + np.roll(centres, 1, axis=0) + across)
        along = corners + np.roll(corners, -1, axis=0)
        cloud[half::step, ::step] = wobbled(centres + np.roll(centres, 1, axis=1) + along)
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    cloud /= cloud.max()
    return cloud
