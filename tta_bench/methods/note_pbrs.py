"""NOTE: robust continual test-time adaptation against temporal correlation (Gong et al., NeurIPS 2022)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from tta_bench.functional import adapt_norm_layers, softmax_entropy
from tta_bench.functional.memory import PBRS, cut_at_updates
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class NOTEPBRS(TTAMethod):
    """Minimise the entropy of the images in a memory that is balanced over the predicted classes.

    This is the part of NOTE that needs no retrained source model: its prediction-balanced reservoir.

    Args:
        backbone: The source model.
        lr: Learning rate of Adam (betas 0.9, 0.999); paper, for batch norm networks.
        memory_size: N, the capacity of the memory; paper.
        update_every: Images of the stream from update to update; paper.
        seed: Seed of the reservoir.

    States:
        The memory, and waiting () images since the last update.

    Cost:
        1 + M / ``update_every`` forward passes and M / ``update_every`` backward passes per sample, with M <= N
        images in memory.

    Source:
        Alg. 1 of the paper; repository TaesikGong/NOTE.

    Departures:
        Instance-aware batch norm, the other part, is left out because the source model would have to be trained with
        it. A batch is predicted as a whole before its updates, where the released code predicts image by image.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    paper = "Gong et al., NeurIPS 2022"
    provenance = "released code (TaesikGong/NOTE), ResNet-18 on CIFAR; without instance-aware batch norm"
    waiting: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-4,
        memory_size: int = 64,
        update_every: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._passes = (0.0, 0.0)

    def passes(self) -> tuple[float, float]:
        """The batch forward; the memory forward and backward, for each update."""
        return self._passes

    def configure_adaptation(self) -> None:
        """Train the norm layers; start an empty memory."""
        self.adapted = adapt_norm_layers(self.backbone)
        self.add_state("waiting", torch.tensor(0))
        self.memory = PBRS(self.hparams.memory_size, self.backbone.num_classes)

    def configure_optimizers(self) -> Optimizer:
        """Adam over the norm layers."""
        return Adam(self.adapted, lr=self.hparams.lr)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K), before the batch's updates."""
        with torch.no_grad():
            logits = self.backbone(images)
        labels, learned_from = logits.argmax(dim=1), 0
        for rows, due in cut_at_updates(int(self.waiting), len(images), self.hparams.update_every):
            self.memory.add(images[rows], labels[rows], self.rng)
            self.waiting = self.waiting + len(images[rows]) if not due else torch.zeros_like(self.waiting)
            if due:
                self.update(softmax_entropy(self.backbone(self.memory.images)).mean())
                learned_from += len(self.memory)
        self._passes = (1 + learned_from / len(images), learned_from / len(images))
        return logits

    def diagnostics(self) -> dict[str, float]:
        """Images in memory."""
        return {"memory_size": float(len(self.memory))}
