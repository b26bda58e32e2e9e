"""Preprocessing profiles: how images are resized and normalised for the network.

Preprocessing is the largest cause of irreproducible numbers on ImageNet-C: with the same weights and files, the source
error is 55.8 % or 49.8 %, depending on the normalisation alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Profile = Literal["timm", "paper", "native"]
PAPER_RESIZE = (256, 224)  # shorter side after resizing, side of the centre crop


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of images, as recorded in results.

    Args:
        profile: Its name; ``own`` if mean or std were set by hand.
        mean: Mean that is subtracted from each channel.
        std: Standard deviation by which each channel is then divided.
        resize: Length to which the shorter side is resized, and side of the centre crop; None only enlarges images
            that are smaller than the network's input.
    """

    profile: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: tuple[int, int] | None = None

    def describe(self) -> dict[str, Any]:
        """Plain values for a result file."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def check_normalisation(mean: object, std: object) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check a mean and a standard deviation given by the user, for images in [0, 1].

    Raises:
        ValueError: If one is given without the other, is not three numbers, or is for images in 0..255; or if a
            standard deviation is not positive.
    """
    if mean is None or std is None:
        raise ValueError("mean and std of the normalisation belong together: set both, or neither")
    values = {"mean": _three(mean, "mean"), "std": _three(std, "std")}
    if min(values["std"]) <= 0:
        raise ValueError(f"std must be positive, got {list(values['std'])}: each channel is divided by it")
    for key, three in values.items():
        if max(three) > 1:
            raise ValueError(
                f"{key} {list(three)} is for images in 0..255, but images are in [0, 1]: divide mean and std by 255"
            )
    if min(values["mean"]) < 0:
        raise ValueError(f"mean must be in [0, 1], like images; got {list(values['mean'])}")
    return values["mean"], values["std"]


def _three(value: object, key: str) -> tuple[float, ...]:
    numbers = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(numbers) != 3 or not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        raise ValueError(f"{key} must be three numbers, for red, green and blue; got {value}")
    return tuple(float(n) for n in numbers)


def profile_of(
    profile: str,
    mean: Sequence[float],
    std: Sequence[float],
    input_size: int | None,
) -> Preprocess:
    """Preprocessing of a profile for a checkpoint.

    Args:
        profile: ``timm``: normalised with the checkpoint's own mean and std. ``native``: values in [0, 1] as they are.
            ``paper``: as in the released code of ViDA and DPCore, which is ``native`` and, for a network of 224
            pixels, resizing to 256 and a centre crop of 224, although the images of ImageNet-C already have that
            size.
        mean: The checkpoint's own mean.
        std: The checkpoint's own standard deviation.
        input_size: Side in pixels of the images that the checkpoint was trained on; None if unknown.

    Raises:
        ValueError: If the profile is unknown.
    """
    if profile not in get_args(Profile):
        raise ValueError(f"model.preprocess must be one of {', '.join(get_args(Profile))}; got {profile!r}")
    if profile == "timm":
        return Preprocess(profile, tuple(mean), tuple(std))
    resize = PAPER_RESIZE if profile == "paper" and input_size == PAPER_RESIZE[1] else None
    return Preprocess(profile, (0.0,) * len(mean), (1.0,) * len(std), resize)


def to_unit(images: Tensor) -> Tensor:
    """Convert uint8 images, or floats that are already in [0, 1], to floats in [0, 1].

    Raises:
        ValueError: If floats exceed that range, as in normalised images, or the images have another type.
    """
    if images.dtype == torch.uint8:
        return images.float().div_(255)
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8, or floats in [0, 1]; got {str(images.dtype).removeprefix('torch.')}")
    low, high = (float(bound) for bound in images.aminmax()) if images.numel() else (0.0, 1.0)
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"images must be in [0, 1] and not normalised, since the model normalises them; got values from {low:.3g} "
            f"to {high:.3g}"
        )
    return images


def resize_and_crop(images: Tensor, shorter: int, side: int) -> Tensor:
    """Resize the shorter side and crop the centre: (B, C, H, W) to (B, C, side, side).

    Bilinear, with antialiasing when images shrink, and with torchvision's rounding of sizes and offsets.
    """
    lengths = images.shape[-2:]
    height, width = (int(shorter * length / min(lengths)) for length in lengths)
    images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)
    top, left = round((height - side) / 2), round((width - side) / 2)
    return images[..., top : top + side, left : left + side]


def enlarge(images: Tensor, size: int | None) -> Tensor:
    """Enlarge smaller square images (B, C, H, W) to (B, C, size, size): bilinear, corners not aligned.

    Raises:
        ValueError: If they are larger, or not square.

    Source: the released ViT code for CIFAR-C, from 32 to 384 pixels (Yangsenqiao/vida, ``cifar/``).
    """
    height, width = images.shape[-2:]
    if size is None or height == width == size:
        return images
    if height != width or height > size:
        raise ValueError(
            f"images of {height}x{width} pixels do not fit a model of {size}x{size}: set dataset.image_size={size}, "
            "or choose another model"
        )
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False)


class PreparedBatches:
    """The batches of a loader with prepared images; can be iterated over as often as the loader.

    Args:
        loader: Batches of images, or of images and labels.
        prepare: Applied to images: ``prepare`` of a ``Backbone``.
    """

    def __init__(self, loader: Iterable[Any], prepare: Callable[[Tensor], Tensor]) -> None:
        self.loader, self.prepare = loader, prepare

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            if isinstance(batch, Tensor):
                yield self.prepare(batch)
            else:
                images, *labels = batch
                yield (self.prepare(images), *labels)
