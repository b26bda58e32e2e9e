"""Losses between predictions.

All take logits (B, K) and return one value per sample, (B,), or logits (B, K, H, W) and one per pixel, (B, H, W).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tta_bench.functional.entropy import at_least_float32


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of ``logits`` with the softmax of ``target``. Gradients flow through both: detach a teacher.

    Source: CoTTA (Wang et al., CVPR 2022), Eq. 1.

    Example:
        >>> import torch
        >>> soft_cross_entropy(torch.zeros(1, 4), torch.tensor([[9.0, 0.0, 0.0, 0.0]]))  # ln 4
        tensor([1.3863])
    """
    return -(at_least_float32(target).softmax(dim=1) * at_least_float32(logits).log_softmax(dim=1)).sum(dim=1)


def hard_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of ``logits`` with the argmax of ``target``.

    Source: Pseudo-Label (Lee, ICML Workshop 2013), Eq. 15.

    Example:
        >>> import torch
        >>> hard_cross_entropy(torch.zeros(1, 4), torch.tensor([[0.1, 0.0, 0.0, 0.0]]))  # ln 4
        tensor([1.3863])
    """
    return F.cross_entropy(at_least_float32(logits), target.argmax(dim=1), reduction="none")


def symmetric_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Half the sum of the cross-entropies in both directions; symmetric in its arguments.

    Source: repository qinenergy/cotta (its ImageNet code); RMT (Doebler et al., CVPR 2023), Eq. 2.
    """
    return (soft_cross_entropy(logits, target) + soft_cross_entropy(target, logits)) / 2


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """-sum_k p_k log(p_k / (1 - p_k) + 1e-5), with p clipped at 0.99 so that confident predictions keep a gradient.

    Source: ROID (Marsden et al., WACV 2024), Eq. 2, and repository mariodoebler/test-time-adaptation.
    """
    p = at_least_float32(logits).softmax(dim=1).clamp(max=0.99)
    return -(p * (p / (1 - p) + 1e-5).log()).sum(dim=1)


def generalized_cross_entropy(logits: Tensor, q: float = 0.8) -> Tensor:
    """(1 - p_y^q) / q for the predicted class y: robust to wrong pseudo-labels.

    Source: RPL (Rusak et al., TMLR 2022), Eq. 1.
    """
    p = at_least_float32(logits).softmax(dim=1).amax(dim=1)
    return (1 - p**q) / q
