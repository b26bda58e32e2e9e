"""Reductions and losses that work alike for scores per image and per pixel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tta_bench.functional.segmentation import IGNORE


def per_image(values: Tensor) -> Tensor:
    """Mean (B,) of each image, from values (B,) or (B, H, W).

    Example:
        >>> import torch
        >>> per_image(torch.tensor([[[1.0, 2.0]], [[5.0, 7.0]]])), per_image(torch.tensor([3.0]))
        (tensor([1.5000, 6.0000]), tensor([3.]))
    """
    return values.reshape(len(values), -1).mean(dim=1)


def per_class(scores: Tensor) -> Tensor:
    """Mean (K,) of each class, from scores (B, K) or (B, K, H, W).

    Example:
        >>> import torch
        >>> per_class(torch.tensor([[[[1.0, 2.0]], [[5.0, 7.0]]]]))
        tensor([1.5000, 6.0000])
    """
    return scores.mean(dim=[0, *range(2, scores.ndim)])


def labeled_cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy with labels, over images or over all pixels that are not ignored; 0 if there are none.

    Args:
        logits: (B, K) or (B, K, H, W).
        labels: (B,), or (B, H, W) with 255 for ignored pixels.
        label_smoothing: Part of the target that is spread evenly over all classes.
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    total = F.cross_entropy(logits, labels, ignore_index=IGNORE, label_smoothing=label_smoothing, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1)
