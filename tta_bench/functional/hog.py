"""Histograms of oriented gradients, as a target for reconstructing masked patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from tta_bench.functional.entropy import at_least_float32

BINS = 9  # of pi / 9 each: opposite gradients share a bin
LARGEST_CELL = 8  # pixels


def cell_size(patch_size: int) -> int:
    """Side of a cell in pixels: the largest, up to 8, that fills a patch.

    Example:
        >>> [cell_size(p) for p in (4, 8, 14, 16, 32)]
        [4, 8, 7, 8, 8]
    """
    return max(side for side in range(1, LARGEST_CELL + 1) if patch_size % side == 0)


def hog_dim(patch_size: int, channels: int = 3) -> int:
    """Length of the descriptor of a patch: the bins of all channels and cells.

    Example:
        >>> [hog_dim(p) for p in (4, 8, 16, 32)]
        [27, 27, 108, 432]
    """
    return channels * BINS * (patch_size // cell_size(patch_size)) ** 2


def hog_targets(images: Tensor, patch_size: int) -> Tensor:
    """Compute the histogram of oriented gradients of each patch.

    Sobel gradients per channel vote with their magnitude for the bin of their direction. The votes are summed over
    cells (see ``cell_size``), and the bins of a cell and channel are normalised to length one, or all zero in a flat
    cell.

    Args:
        images: Batch (B, C, H, W) in [0, 1].
        patch_size: Side p of a patch in pixels, dividing H and W.

    Returns:
        Descriptors (B, N, hog_dim(p, C)) of the patches, row by row from the top left, at least float32. A descriptor
        is ordered by channel, bin, row and column of the cell.

    Raises:
        ValueError: If the size of the images is not a multiple of the patch size.

    Source: Dalal & Triggs, CVPR 2005; MaskFeat (Wei et al., CVPR 2022); repository RanXu2000/continual-mae.
    """
    images = at_least_float32(images)
    batch, channels, height, width = images.shape
    if height % patch_size or width % patch_size:
        raise ValueError(f"images of {height}x{width} cannot be split into patches of {patch_size} pixels")
    padded = pad(images, [1, 1, 1, 1], mode="reflect").flatten(0, 1)
    gx, gy = _sobel(padded), _sobel(padded.mT).mT  # (B C, H, W)
    bins = (torch.atan2(gx, gy) * (BINS / math.pi)).floor().long() % BINS
    votes = images.new_zeros(*bins.shape, BINS).scatter_(-1, bins[..., None], torch.hypot(gx, gy)[..., None])
    cell = cell_size(patch_size)
    cells = votes.view(batch * channels, height // cell, cell, width // cell, cell, BINS).sum(dim=(2, 4))
    cells = normalize(cells, dim=-1)
    per_patch = patch_size // cell
    rows, columns = height // patch_size, width // patch_size
    grid = cells.view(batch, channels, rows, per_patch, columns, per_patch, BINS)
    return grid.permute(0, 2, 4, 1, 6, 3, 5).reshape(batch, rows * columns, -1)


def _sobel(x: Tensor) -> Tensor:
    """Horizontal gradient (..., H, W) of (..., H + 2, W + 2), from differences: exactly 0 in flat areas."""
    change = x[..., :-2] - x[..., 2:]
    return change[..., :-2, :] + 2 * change[..., 1:-1, :] + change[..., 2:, :]
