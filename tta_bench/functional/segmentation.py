"""Confusion matrices for segmentation, and predictions from several views of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_bench.functional.entropy import at_least_float32

IGNORE = 255  # the label of ignored pixels


def confusion_per_image(predicted: Tensor, labels: Tensor, num_classes: int, ignore: int = IGNORE) -> Tensor:
    """Count the pixels of each image by label and prediction, without waiting for the device.

    torchmetrics counts a whole batch, but a batch here may contain images of several domains.

    Args:
        predicted: Classes (B, H, W) int64.
        labels: Classes (B, H, W) int64, each a class or ``ignore``.
        num_classes: K.
        ignore: Label of ignored pixels.

    Returns:
        (B, K, K) int64: rows are labels, columns are predictions.
    """
    cells = torch.where(labels == ignore, num_classes**2, labels * num_classes + predicted).flatten(1)
    counts = cells.new_zeros(len(cells), num_classes**2 + 1).scatter_add_(1, cells, torch.ones_like(cells))
    return counts[:, :-1].unflatten(1, (num_classes, num_classes))


def resized(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize scores (B, K, h, w) to (B, K, H, W): bilinear, corners not aligned."""
    return scores if scores.shape[-2:] == size else F.interpolate(scores, size, mode="bilinear", align_corners=False)


def selected_images(selected: Tensor) -> int:
    """Number of images with selected samples (B,) or pixels (B, H, W), through which the backward pass goes.

    Example:
        >>> selected_images(torch.tensor([[[True, True]], [[False, False]]]))
        1
    """
    return int(selected.reshape(len(selected), -1).any(dim=1).sum())


def view_probabilities(
    network: Callable[[Tensor], Tensor],
    images: Tensor,
    scales: Iterable[float],
    *,
    flips: bool = True,
    size: tuple[int, int] | None = None,
) -> Iterator[Tensor]:
    """Class probabilities of resized and mirrored views of the images, one view at a time.

    Args:
        network: Maps images (B, C, h, w) to logits (B, K, h, w).
        images: (B, C, H, W).
        scales: Scale factors of height and width.
        flips: Whether every view is also mirrored.
        size: Common height and width of the probabilities; None uses those of the images.

    Yields:
        (B, K, *size), at least float32: scale by scale, each unmirrored and then mirrored.
    """
    height, width = images.shape[-2:]
    for scale in scales:
        view = resized(images, (int(height * scale + 0.5), int(width * scale + 0.5)))  # rounded as in mmcv
        for mirrored in (False, True)[: 1 + flips]:
            logits = network(view.flip(-1) if mirrored else view)
            logits = resized(at_least_float32(logits), size or (height, width))  # softmax follows the resizing
            probabilities = logits.softmax(dim=1)
            yield probabilities.flip(-1) if mirrored else probabilities


def multi_view_probabilities(
    network: Callable[[Tensor], Tensor],
    images: Tensor,
    scales: Iterable[float],
    *,
    flips: bool = True,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Mean of ``view_probabilities``, with the same arguments: (B, K, *size), at least float32.

    Source: CoTTA (Wang et al., CVPR 2022), segmentation code: factors 0.5, 0.75, ... 2, mirrored, 14 views.
    """
    total, count = torch.zeros((), device=images.device), 0
    for probabilities in view_probabilities(network, images, scales, flips=flips, size=size):
        total, count = total + probabilities, count + 1
    return total / count
