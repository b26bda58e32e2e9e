"""Rearrangement of the patches of images."""

from __future__ import annotations

import torchvision.transforms.v2.functional as F
from torch import Tensor
from torch.nn.functional import fold, unfold


def shuffle_patches(images: Tensor, order: Tensor) -> Tensor:
    """Split each image into a grid of g x g patches and rearrange them: this destroys shapes but not local features.

    Args:
        images: Batch (B, C, H, W). If g does not divide a side, the image is resized to the next smaller multiple of
            g, and back afterwards.
        order: (B, g * g) int64, one permutation per image on its device: position j, counted row by row, gets the
            patch from position ``order[:, j]``.

    Returns:
        Batch (B, C, H, W).

    Source: DeYO (Lee et al., ICLR 2024), repository Jhyun17/DeYO.

    Example:
        >>> import torch
        >>> shuffle_patches(torch.arange(4.0).view(1, 1, 2, 2), torch.tensor([[3, 0, 1, 2]]))
        tensor([[[[3., 0.],
                  [1., 2.]]]])
    """
    (height, width), grid = images.shape[-2:], round(order.shape[1] ** 0.5)
    patch = (height // grid, width // grid)
    size = (grid * patch[0], grid * patch[1])
    patches = unfold(F.resize(images, list(size)), kernel_size=patch, stride=patch)  # (B, C * h * w, g * g)
    shuffled = patches.gather(2, order[:, None].expand_as(patches))
    return F.resize(fold(shuffled, size, kernel_size=patch, stride=patch), [height, width])
