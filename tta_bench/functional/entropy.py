"""Entropies of predictions."""

from __future__ import annotations

from torch import Tensor


def softmax_entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax over the classes.

    Args:
        logits: Scores of shape (B, K), or (B, K, H, W) for segmentation.

    Returns:
        Entropies of shape (B,) or (B, H, W), in nats, at least float32.

    Source: Tent (Wang et al., ICLR 2021), Sec. 3.1.

    Example:
        >>> import torch
        >>> softmax_entropy(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    log_p = at_least_float32(logits).log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32, which statistics and entropies need, and keep float64."""
    return x.float() if x.element_size() < 4 else x
