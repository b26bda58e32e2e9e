"""Augmented source images, as used to train networks, drawn independently for every image."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor

ASPECT = 4 / 3  # largest aspect ratio of a crop
JITTER = 0.4  # brightness, contrast and saturation change by a factor of at most 1 -/+ this
HUE = 0.1  # fraction of the colour circle
BLUR = (0.1, 2.0)  # standard deviation in pixels


def training_view(images: Tensor, rng: torch.Generator, **changes: Any) -> Tensor:
    """Augment images (B, 3, H, W) in [0, 1] as in ``training_pair``, with the same arguments."""
    return training_pair(images, torch.empty(len(images)), rng, **changes)[0]


def training_pair(
    images: Tensor,
    labels: Tensor,
    rng: torch.Generator,
    *,
    crop: float = 1.0,
    mirror: float = 0.5,
    jitter: float = 0.0,
    grey: float = 0.0,
    blur: float = 0.0,
    blur_size: int = 5,
) -> tuple[Tensor, Tensor]:
    """Crop, mirror and change the colours of images at random, keeping their size.

    Whether an image is changed is drawn per image; the strengths of jitter and blur are shared by the batch.

    Args:
        images: (B, 3, H, W) in [0, 1].
        labels: (B,), which are not changed, or maps (B, H, W), which are cropped and mirrored with their images.
        rng: Generator on the CPU.
        crop: Smallest fraction of the area that is kept; 1 keeps the whole image.
        mirror: Probability of mirroring.
        jitter: Probability of changing brightness, contrast, saturation and hue.
        grey: Probability of conversion to grey.
        blur: Probability of a Gaussian blur.
        blur_size: Side of the blur kernel in pixels, odd.

    Returns:
        Images (B, 3, H, W) in [0, 1], and labels of the same shape as before.

    Source: the crops of GoogLeNet (Szegedy et al., CVPR 2015); the colours of SimCLR (Chen et al., ICML 2020), App. A.
    """

    def uniform(low: float, high: float, count: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=rng)

    def chosen(probability: float) -> Tensor:
        return (torch.rand(len(images), generator=rng) < probability).to(images.device)[:, None, None, None]

    def some(probability: float, change: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.where(chosen(probability), change(images), images)

    are_maps = labels.ndim == 3

    if crop < 1:
        area, aspect = uniform(crop, 1, len(images)), uniform(-1, 1, len(images)) * math.log(ASPECT)
        sides = torch.stack([(area * aspect.exp()).sqrt(), (area / aspect.exp()).sqrt()], dim=1).clamp(max=1)
        windows = sides, (1 - sides) * uniform(-1, 1, sides.numel()).view_as(sides)
        if are_maps:
            labels = _cropped(labels[:, None].to(images), *windows, mode="nearest")[:, 0].to(labels.dtype)
        images = _cropped(images, *windows)
    mirrored = chosen(mirror)
    images = torch.where(mirrored, images.flip(-1), images)
    if are_maps:
        labels = torch.where(mirrored[:, 0], labels.flip(-1), labels)
    if jitter > 0:
        brightness, contrast, saturation = uniform(1 - JITTER, 1 + JITTER, 3).tolist()
        hue = float(uniform(-HUE, HUE))
        images = some(jitter, lambda x: _jittered(x, brightness, contrast, saturation, hue))
    if grey > 0:
        images = some(grey, lambda x: F.rgb_to_grayscale(x, num_output_channels=3))
    if blur > 0:
        sigma = float(uniform(*BLUR))
        images = some(blur, lambda x: F.gaussian_blur(x, [blur_size, blur_size], [sigma]))
    return images, labels


def _cropped(images: Tensor, sides: Tensor, centres: Tensor, mode: str = "bilinear") -> Tensor:
    """Crop windows with ``sides`` and ``centres`` (B, 2), x before y, in half images, and resize them to full size."""
    theta = torch.cat([torch.diag_embed(sides), centres[..., None]], dim=2).to(images)  # (B, 2, 3)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)


def _jittered(images: Tensor, brightness: float, contrast: float, saturation: float, hue: float) -> Tensor:
    images = F.adjust_contrast(F.adjust_brightness(images, brightness), contrast)
    return F.adjust_hue(F.adjust_saturation(images, saturation), hue)
