"""The simplified DPCore of the paper's analysis (Zhang et al., ICML 2025, Alg. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_bench.methods.dpcore import DPCore
from tta_bench.models.backbones.base import Backbone


class DPCoreSimplified(DPCore):
    """Assign each batch to the nearest coreset element by its mean alone, or found a new one beyond ``theta``.

    For well separated clusters of batches every batch joins the right cluster, whatever their order, and an
    element's mean is the mean of its cluster (Propositions 1-3).

    Args:
        backbone: The source model; must take prompts.
        theta: Largest distance between a batch's mean and an element's, in feature units. The paper assumes one
            that separates the clusters and gives no value; the default is ours.
        prompt_length: L.
        lr: Learning rate of AdamW.
        steps_new: Updates of a prompt that is learned from scratch.
        num_source: Number of unlabeled source images behind the source statistics.
        seed: Seed of the initial prompt.

    States:
        As DPCore; cluster_size (K,): batches in each cluster.

    Cost:
        Forward / backward passes per sample: 2 / 1 for a known cluster, 1 + steps_new / steps_new for a new one.

    Source:
        Alg. 2 and Propositions 1-3; re-implementation, no code was released.
    """

    cluster_size: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        theta: float = 5.0,
        prompt_length: int = 8,
        lr: float = 0.01,
        steps_new: int = 50,
        num_source: int = 300,
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone, prompt_length=prompt_length, lr=lr, steps_new=steps_new, num_source=num_source, seed=seed
        )
        self.theta = theta

    def configure_adaptation(self) -> None:
        """As DPCore, and a counter per element."""
        super().configure_adaptation()
        self.add_state("cluster_size", torch.empty(0))

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) of the last forward pass, before its update (Alg. 2)."""
        batch = self.space.embed(self.backbone, images)
        features = self.space.raw(self.backbone, batch)
        self._passes = (1, 0)
        if len(images) == 1 and not self.backbone.segments:  # no standard deviation
            return self.backbone.classify(features)
        raw = self._statistics(features)
        distances = torch.linalg.vector_norm(raw.mean - self.coreset.mean, dim=-1)  # (K,)
        if len(distances) == 0 or distances.min() > self.theta:
            self.element = len(distances)
            self.cluster_size = torch.cat([self.cluster_size, self.cluster_size.new_ones(1)])
            return self._learn_new(batch, raw)

        self.element = int(distances.argmin())
        self._start_from(self.coreset.prompt[self.element])
        features = self.space.prompted(self.backbone, batch)
        self.update(self.source.distance(self._statistics(features)))
        self._passes = (2, 1)
        self.cluster_size[self.element] += 1
        nearest = torch.zeros_like(distances)
        nearest[self.element] = 1
        self.coreset.refine(nearest, raw, self.space.value(), alpha=1 / float(self.cluster_size[self.element]))
        return self.backbone.classify(features.detach())

    def diagnostics(self) -> dict[str, float]:
        """Coreset size and the element of the last batch."""
        return {"coreset_size": float(len(self.coreset)), "element": float(getattr(self, "element", 0))}
