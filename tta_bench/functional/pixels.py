"""Scores per image or per pixel, alike: what is a number per image or per class, and a loss with labels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tta_bench.functional.segmentation import IGNORE


def per_image(values: Tensor) -> Tensor:
    """Mean of each image: values (B,) or of pixels (B, H, W) -> (B,).

    Example:
        >>> import torch
        >>> per_image(torch.tensor([[[1.0, 2.0]], [[5.0, 7.0]]])), per_image(torch.tensor([3.0]))
        (tensor([1.5000, 6.0000]), tensor([3.]))
    """
    return values.reshape(len(values), -1).mean(dim=1)


def per_class(scores: Tensor) -> Tensor:
    """Mean of each class: scores (B, K) or of pixels (B, K, H, W) -> (K,).

    Example:
        >>> import torch
        >>> per_class(torch.tensor([[[[1.0, 2.0]], [[5.0, 7.0]]]]))
        tensor([1.5000, 6.0000])
    """
    return scores.mean(dim=[0, *range(2, scores.ndim)])


def labeled_cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of logits (B, K) with labels (B,), or over the pixels that count; 0 if none does.

    Args:
        logits: (B, K) or (B, K, H, W).
        labels: (B,), or (B, H, W) where 255 does not count.
        label_smoothing: Share of the target that all classes divide among them.
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    total = F.cross_entropy(logits, labels, ignore_index=IGNORE, label_smoothing=label_smoothing, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1)
