"""RDumb: adapt, and reset at regular intervals (Press et al., NeurIPS 2023)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tta_bench.methods.eata import ETA
from tta_bench.models.backbones.base import Backbone


class RDumb(ETA):
    """ETA that resets the model after a fixed number of batches, so that it cannot stay collapsed for long.

    Args:
        backbone: The source model.
        lr: Learning rate; 2.5e-4 in the released code (ResNet-50) and in repository LTS5/ReservoirTTA (ViT-B).
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        entropy_margin: E_0 as a share of ln(num_classes); 0.4 there.
        cosine_margin: Largest cosine similarity to the running mean of predictions; 0.05 there.
        reset_every: Batches between resets, whatever their size; the paper's 1000 (of 64 images).
        seed: Not used; the method draws no random numbers.

    States:
        batches (): since the last reset. mean_probabilities: as ETA.

    Cost:
        1 forward pass and the share of selected images in backward passes per sample.

    Source:
        The paper's method; repository oripress/CCC.

    Departures:
        None.
    """

    paper = "Press et al., NeurIPS 2023"
    provenance = "released code (oripress/CCC); the same for ViT-B in LTS5/ReservoirTTA"
    batches: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 2.5e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        entropy_margin: float = 0.4,
        cosine_margin: float = 0.05,
        reset_every: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone, lr=lr, optimizer=optimizer, momentum=momentum, entropy_margin=entropy_margin,
            cosine_margin=cosine_margin, seed=seed,
        )  # fmt: skip

    def configure_adaptation(self) -> None:
        """As ETA, and a count of batches."""
        super().configure_adaptation()
        self.add_state("batches", torch.tensor(0))

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> ETA's logits, before the update and after any reset that is due."""
        if self.batches >= self.hparams.reset_every:
            self.reset()
        self.batches += 1
        return super().forward_and_adapt(images)
