"""The prompt coreset of DPCore: prompts, each with the statistics of the batches that it represents."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from tta_bench.functional.statistics import Statistics, statistics_distance


class Coreset(nn.Module):
    """K elements, each a prompt and its statistics; empty at first.

    The contents are buffers, so a coreset inside a method is saved and reset with it.

    Args:
        feature_dim: Width D of the statistics.
        prompt: A prompt with the shape and precision of those to be stored.
        max_size: Maximum number of elements; None for no limit.
        overflow: How to make room in a full coreset: ``merge`` averages the two elements with the smallest distance,
            ``discard`` drops the oldest.

    States:
        mean, std: (K, D), at least float32. prompt: (K, ...).

    Source: DPCore (Zhang et al., ICML 2025), Sec. 4.2 and 4.3; limited size as in its ablation.
    """

    mean: Tensor
    std: Tensor
    prompt: Tensor

    def __init__(
        self,
        feature_dim: int,
        prompt: Tensor,
        max_size: int | None = None,
        overflow: Literal["merge", "discard"] = "merge",
    ) -> None:
        super().__init__()
        self.max_size, self.overflow = max_size, overflow
        precision = torch.promote_types(prompt.dtype, torch.float32)  # statistics are never in half precision
        self.register_buffer("mean", prompt.new_empty(0, feature_dim, dtype=precision))
        self.register_buffer("std", prompt.new_empty(0, feature_dim, dtype=precision))
        self.register_buffer("prompt", prompt.new_empty(0, *prompt.shape))

    def __len__(self) -> int:
        return len(self.mean)

    def weights(self, stats: Statistics, tau: float) -> Tensor:
        """Weight (K,) of each element in the prompt for a batch with statistics (D,) (Eq. 7).

        Args:
            stats: Statistics of the batch, without a prompt.
            tau: Temperature, in feature units; towards 0, the nearest element gets all the weight.
        """
        distances = statistics_distance(stats, Statistics(self.mean, self.std))
        return torch.softmax(-distances / tau, dim=0)

    def mix(self, weights: Tensor) -> Tensor:
        """Weighted sum of all prompts, with weights (K,) (Eq. 7)."""
        return torch.tensordot(weights.to(self.prompt.dtype), self.prompt, dims=1)

    @torch.no_grad()
    def append(self, stats: Statistics, prompt: Tensor) -> None:
        """Add an element, and make room if there are now too many."""
        self.mean = torch.cat([self.mean, stats.mean[None]])
        self.std = torch.cat([self.std, stats.std[None]])
        self.prompt = torch.cat([self.prompt, prompt[None]])
        if self.max_size is not None and len(self) > self.max_size:
            self._make_room()

    @torch.no_grad()
    def refine(self, weights: Tensor, stats: Statistics, prompt: Tensor, alpha: float) -> None:
        """Move every element towards a batch and its prompt, by ``alpha`` times its weight (Eq. 8).

        Standard deviations only grow, in the paper's text as in its released code.

        Args:
            weights: (K,), from ``weights``.
            stats: Statistics (D,) of the batch.
            prompt: The prompt after its update on the batch.
            alpha: Update rate of an element with weight 1.
        """
        rate = alpha * weights[:, None]  # (K, 1)
        self.mean += rate * (stats.mean - self.mean)
        self.std += rate * (stats.std - self.std).clamp(min=0)
        by_element = rate.view(-1, *(1,) * prompt.ndim).to(prompt.dtype)
        self.prompt += by_element * (prompt - self.prompt)

    def _make_room(self) -> None:
        """Drop the oldest element, or average the two with the nearest statistics at the position of the older one."""
        older, gone = 0, 0
        if self.overflow == "merge":
            elements = Statistics(self.mean, self.std)
            pairs = statistics_distance(Statistics(self.mean[:, None], self.std[:, None]), elements)  # (K, K)
            pairs.masked_fill_(torch.ones_like(pairs, dtype=torch.bool).tril(), math.inf)
            older, gone = divmod(int(pairs.argmin()), len(pairs))
        for name in ("mean", "std", "prompt"):
            values = getattr(self, name)
            values[older] = (values[older] + values[gone]) / 2
            setattr(self, name, torch.cat([values[:gone], values[gone + 1 :]]))
