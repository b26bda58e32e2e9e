"""DPCore-B: DPCore with a buffer zone for single images (Zhang et al., ICML 2025, appendix)."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_bench.methods.dpcore import DPCore
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class DPCoreB(DPCore):
    """Predict each image when it arrives, and let DPCore learn from every full buffer of them.

    An image is predicted under the prompt that the last full buffer left behind, and by the source model before the
    first: the paper does not say, this rule is ours. For streams of single images (``setting=batch_size_1``); a
    buffer may span a domain boundary, as the paper discusses.

    Args:
        backbone: The source model.
        buffer_size: Images in a full buffer; the paper tries 8, 16, 32 and 64.
        prompt_length: As DPCore, like all that follow.
        lr: Learning rate of AdamW.
        rho: Share of the distance below which a buffer is of a known domain.
        tau: Temperature of the weights.
        alpha: Share of the new value in a coreset update.
        steps_new: Updates of a prompt that is learned from scratch.
        num_source: Number of unlabeled source images behind the source statistics.
        seed: Seed of the initial prompt.

    States:
        buffer (n, C, H, W): images that wait. The others as DPCore.

    Cost:
        1 forward pass per sample, and DPCore's passes once per full buffer.

    Source:
        Appendix on small batches of the paper; re-implementation.

    Departures:
        The paper keeps the [CLS] features of the images that wait. Ours keeps the images: the weighted prompt is
        evaluated, and a new one learned, by passing them again.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    provenance = "re-implementation; DPCore's values"
    buffer: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        buffer_size: int = 64,
        prompt_length: int = 8,
        lr: float = 0.01,
        rho: float = 0.8,
        tau: float = 3.0,
        alpha: float = 0.999,
        steps_new: int = 50,
        num_source: int = 300,
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone, prompt_length=prompt_length, lr=lr, rho=rho, tau=tau, alpha=alpha, steps_new=steps_new,
            num_source=num_source, seed=seed,
        )  # fmt: skip
        if buffer_size < 2:
            raise ValueError(
                f"a buffer of {buffer_size} has no standard deviation: method.buffer_size must be 2 or more"
            )
        self.buffer_size = buffer_size
        self._buffer_passes = (1.0, 0.0)

    def configure_adaptation(self) -> None:
        """As DPCore, and an empty buffer."""
        super().configure_adaptation()
        self.add_state("buffer", torch.empty(0))

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) under the prompt of the last full buffer."""
        with torch.no_grad():
            embedded = self.space.embed(self.backbone, images)
            run = self.space.prompted if len(self.coreset) > 0 else self.space.raw
            logits = self.backbone.classify(run(self.backbone, embedded))
        forward, backward, size = 1.0, 0.0, self.buffer_size
        self.buffer = torch.cat([self.buffer.to(images.dtype).view(-1, *images.shape[1:]), images])
        while len(self.buffer) >= size:
            full, self.buffer = self.buffer[:size], self.buffer[size:].clone()
            super().forward_and_adapt(full)
            forward += self._passes[0] * size / len(images)
            backward += self._passes[1] * size / len(images)
        self._buffer_passes = (forward, backward)
        return logits

    def passes(self) -> tuple[float, float]:
        """1 forward, and DPCore's passes over the buffers that this batch filled."""
        return self._buffer_passes
