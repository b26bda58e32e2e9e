"""AugMix views of one image, generated as one batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

CHAINS = 3
LONGEST = 3  # augmentations in a chain
# Largest strengths: level 1 of AugMix's 10.
DEGREES = 3.0
SHEAR = 0.03
SHIFT = 1 / 30  # fraction of the side
SOLARIZED = 25.6  # of 256 grey levels
BITS = 4
AREA = (0.08, 1.0)  # fraction of the image in a crop
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
TRIES = 10  # attempts to find a crop that fits into the image


def augmix_views(image: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw random crops, each mixed with three chains of one to three augmentations of itself.

    Args:
        image: One image (1, 3, H, W) of floats in [0, 1].
        count: Number of views N.
        rng: Generator on the CPU.

    Returns:
        Views (N, 3, H, W) in [0, 1].

    Source: AugMix (Hendrycks et al., ICLR 2020), Alg. 1; strengths and crops of MEMO (Zhang et al., NeurIPS 2022),
    repository zhangmarvin/memo, which fills areas uncovered by a warp with dark red; here they are grey.
    """
    crops = random_crops(image.expand(count, -1, -1, -1), rng)
    chains = crops.repeat_interleave(CHAINS, dim=0)
    lengths = torch.randint(1, LONGEST + 1, (len(chains),), generator=rng)
    for step in range(LONGEST):
        kinds = torch.randint(len(AUGMENTATIONS), lengths.shape, generator=rng).masked_fill(lengths <= step, -1)
        levels = _uniform(0.1, 1, kinds.shape, rng) * _signs(kinds.shape, rng)
        for kind, augmentation in enumerate(AUGMENTATIONS.values()):
            rows = (kinds == kind).nonzero().squeeze(1)
            if len(rows) > 0:
                chosen = rows.to(chains.device)
                chains[chosen] = augmentation(chains[chosen], levels[rows])
    shares = torch.empty(count, CHAINS).exponential_(generator=rng)  # normalised: a flat Dirichlet distribution
    shares = (shares / shares.sum(dim=1, keepdim=True)).to(chains)
    mixed = torch.einsum("nk,nk...->n...", shares, chains.unflatten(0, (count, CHAINS)))
    return torch.lerp(mixed, crops, torch.rand(count, 1, 1, 1, generator=rng).to(crops))


def _uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=rng)


def _signs(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, shape, generator=rng) - 1


def random_crops(images: Tensor, rng: torch.Generator) -> Tensor:
    """Draw a random part of each image and resize it to full size, mirroring half of them.

    Args:
        images: Batch (N, C, H, W) of floats in [0, 1].
        rng: Generator on the CPU.

    Returns:
        Crops (N, C, H, W): each covers ``AREA`` of its image, at an aspect ratio within ``LOG_ASPECT``.
    """
    count, ratio = len(images), images.shape[-1] / images.shape[-2]
    area = _uniform(*AREA, (count, TRIES), rng)
    aspect = _uniform(*LOG_ASPECT, (count, TRIES), rng).exp() / ratio
    width, height = (area * aspect).sqrt(), (area / aspect).sqrt()  # fractions of the sides
    fits = ((width <= 1) & (height <= 1)).int().argmax(dim=1, keepdim=True)  # the first; if none, clipped below
    width, height = (side.gather(1, fits).squeeze(1).clamp(max=1) for side in (width, height))
    matrix = _identity(count)
    for axis, side in enumerate((width, height)):
        matrix[:, axis, axis] = side
        matrix[:, axis, 2] = (1 - side) * _uniform(-1, 1, (count,), rng)
    matrix[:, 0, 0] *= _signs((count,), rng)
    return _warp(images, matrix, border="border")


def _identity(count: int) -> Tensor:
    return torch.eye(2, 3).repeat(count, 1, 1)


def _warp(images: Tensor, matrix: Tensor, border: str = "zeros") -> Tensor:
    """Sample each position (x, y) at ``matrix`` (N, 2, 3) times (x, y, 1), where the image is [-1, 1] in x and y."""
    grid = affine_grid(matrix.to(images), list(images.shape), align_corners=False)
    return grid_sample(images - 0.5, grid, padding_mode=border, align_corners=False) + 0.5  # zeros: grey


def _rotate(images: Tensor, levels: Tensor) -> Tensor:
    angle, ratio = (DEGREES * levels).trunc().deg2rad(), images.shape[-2] / images.shape[-1]
    matrix = _identity(len(images))
    matrix[:, 0, 0] = matrix[:, 1, 1] = angle.cos()
    matrix[:, 0, 1], matrix[:, 1, 0] = -angle.sin() * ratio, angle.sin() / ratio
    return _warp(images, matrix)


def _shear(images: Tensor, levels: Tensor, axis: int) -> Tensor:
    """Shift each line along ``axis`` (0: x) in proportion to its distance from the corner of the image."""
    sides = images.shape[-1], images.shape[-2]
    matrix = _identity(len(images))
    matrix[:, axis, 1 - axis] = matrix[:, axis, 2] = SHEAR * levels * sides[1 - axis] / sides[axis]
    return _warp(images, matrix)


def _translate(images: Tensor, levels: Tensor, axis: int) -> Tensor:
    side = (images.shape[-1], images.shape[-2])[axis]
    matrix = _identity(len(images))
    matrix[:, axis, 2] = (SHIFT * side * levels).trunc() * 2 / side
    return _warp(images, matrix)


def _solarize(images: Tensor, levels: Tensor) -> Tensor:
    """Invert the brightest grey levels."""
    threshold = 256 - (SOLARIZED * levels.abs()).floor()
    return torch.where(images * 255 < threshold.to(images).view(-1, 1, 1, 1), images, 1 - images)


# Each takes images (N, 3, H, W) and signed levels (N,) on the CPU, with absolute values from 0.1 to 1.
AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda images, levels: F.autocontrast(images),
    "equalize": lambda images, levels: F.equalize(images),
    "posterize": lambda images, levels: F.posterize(images, BITS),
    "solarize": _solarize,
    "rotate": _rotate,
    "shear_x": partial(_shear, axis=0),
    "shear_y": partial(_shear, axis=1),
    "translate_x": partial(_translate, axis=0),
    "translate_y": partial(_translate, axis=1),
}
