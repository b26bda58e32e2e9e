"""Augmented views of a batch for mean-teacher methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor

from tta_bench.functional.randomness import spawn

NOISE = 0.005  # standard deviation
BLUR_SIZE = 5  # side of the kernel in pixels


class Ranges(NamedTuple):
    """Ranges of the uniform distributions from which a view is drawn."""

    brightness: tuple[float, float] = (0.6, 1.4)
    contrast: tuple[float, float] = (0.7, 1.3)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: tuple[float, float] = (-0.06, 0.06)  # fraction of the colour circle
    gamma: tuple[float, float] = (0.7, 1.3)
    degrees: tuple[float, float] = (-15.0, 15.0)
    scale: tuple[float, float] = (0.9, 1.1)
    shift: tuple[float, float] = (-1 / 8, 1 / 8)  # fraction of the side: 1/16 of the padded image, as released
    blur: tuple[float, float] = (0.001, 0.5)  # standard deviation in pixels


SOFT = Ranges(
    brightness=(0.8, 1.2),
    contrast=(0.85, 1.15),
    saturation=(0.75, 1.25),
    hue=(-0.03, 0.03),
    gamma=(0.85, 1.15),
    degrees=(-8.0, 8.0),
    scale=(0.95, 1.05),
    blur=(0.001, 0.25),
)
# In the order of the fields of Ranges.
COLOUR = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue, F.adjust_gamma)


def random_view(images: Tensor, kind: str, rng: torch.Generator, *, in_place: bool = False) -> Tensor:
    """Draw an augmented view of a batch; all images share the random parameters, except for the noise.

    Args:
        images: Batch (B, 3, H, W) of floats in [0, 1].
        kind: ``cotta``: colour (in random order), rotation, shift, scale, blur, flip and noise; ``soft``: the same
            with about half the strength; ``roid``: without blur and noise, and with reflection padding, where the
            others repeat the edge; ``flip``: mirrored left to right; ``identity``. The last two are deterministic.
        rng: Generator on the CPU.
        in_place: Keep every pixel at its position (no rotation, shift, scale or flip), for predictions that are
            compared pixel by pixel.

    Returns:
        Batch (B, 3, H, W) in [0, 1].

    Raises:
        ValueError: If ``kind`` is not one of ``VIEWS``.

    Source: CoTTA (Wang et al., CVPR 2022), repository qinenergy/cotta; ``roid``: Marsden et al., WACV 2024,
    repository mariodoebler/test-time-adaptation.
    """
    if kind not in VIEWS:
        raise ValueError(f"unknown kind of view '{kind}': choose one of {', '.join(VIEWS)}")
    return VIEWS[kind](images, rng, in_place=in_place)


def transformed_view(
    images: Tensor, rng: torch.Generator, ranges: Ranges, border: str, blur_and_noise: bool, in_place: bool = False
) -> Tensor:
    """Apply the steps that the random views share; see ``random_view``.

    Args:
        images: Batch (B, 3, H, W) of floats; clamped to [0, 1] first.
        rng: Generator on the CPU.
        ranges: Ranges of the parameters.
        border: Padding mode for areas uncovered by a warp, ``edge`` or ``reflect``.
        blur_and_noise: Whether to blur the view and add noise of standard deviation ``NOISE``.
        in_place: Whether to keep every pixel at its position.

    Returns:
        Batch (B, 3, H, W) in [0, 1].
    """
    height, width = images.shape[-2:]

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=rng, dtype=torch.float64))

    images = images.clamp(0, 1)
    factors = [uniform(*ends) for ends in ranges[: len(COLOUR)]]
    for i in torch.randperm(len(COLOUR), generator=rng).tolist():
        images = COLOUR[i](images, factors[i])
    if not in_place:
        images = F.pad(images, [width // 2, height // 2], padding_mode=border)
        images = F.affine(
            images,
            angle=uniform(*ranges.degrees),
            translate=[round(width * uniform(*ranges.shift)), round(height * uniform(*ranges.shift))],
            scale=uniform(*ranges.scale),
            shear=[0.0, 0.0],
            interpolation=F.InterpolationMode.BILINEAR,
        )
        reach = min(BLUR_SIZE // 2, height // 2, width // 2) if blur_and_noise else 0
        images = F.center_crop(images, [height + 2 * reach, width + 2 * reach])  # only as far as the blur reaches
    if blur_and_noise:
        images = F.gaussian_blur(images, kernel_size=[BLUR_SIZE, BLUR_SIZE], sigma=[uniform(*ranges.blur)])
    if not in_place:
        images = F.center_crop(images, [height, width])
        if uniform(0, 1) < 0.5:
            images = F.horizontal_flip(images)
    if blur_and_noise:
        images = images + NOISE * torch.randn(
            images.shape, generator=spawn(rng, images.device), device=images.device, dtype=images.dtype
        )
    return images.clamp(0, 1)


View = Literal["cotta", "soft", "roid", "flip", "identity"]
VIEWS: dict[str, Callable[..., Tensor]] = {
    "cotta": partial(transformed_view, ranges=Ranges(), border="edge", blur_and_noise=True),
    "soft": partial(transformed_view, ranges=SOFT, border="edge", blur_and_noise=True),
    "roid": partial(transformed_view, ranges=Ranges(), border="reflect", blur_and_noise=False),
    "flip": lambda images, rng, in_place: images if in_place else images.flip(-1),
    "identity": lambda images, rng, in_place: images,
}
