"""RPL: robust pseudo-labeling, self-training with a loss that forgives wrong labels (Rusak et al., TMLR 2022)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, generalized_cross_entropy, sgd_or_adam
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class RPL(TTAMethod):
    """Minimise the mean generalised cross-entropy with the predicted class over the norm layers.

    Args:
        backbone: The source model.
        lr: Learning rate; 5e-4 in the ImageNet-C configurations of both repositories below.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        nesterov: Whether SGD uses Nesterov momentum, as in mariodoebler/test-time-adaptation; oripress/CCC does not.
        q: Between cross-entropy (q to 0) and mean absolute error (q = 1); the paper's 0.8.
        seed: Not used; the method draws no random numbers.

    Cost:
        1 forward and 1 backward pass per sample.

    Source:
        The paper's generalised cross-entropy; repositories mariodoebler/test-time-adaptation and oripress/CCC.

    Departures:
        The paper runs several epochs over each corruption; here every batch is seen once, as in both repositories.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    paper = "Rusak et al., TMLR 2022"
    provenance = "mariodoebler/test-time-adaptation, ImageNet-C (one setting for all networks)"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 5e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        nesterov: bool = True,
        q: float = 0.8,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)

    def passes(self) -> tuple[float, float]:
        """1 forward, 1 backward."""
        return (1, 1)

    def configure_adaptation(self) -> None:
        """Train the norm layers only."""
        self.adapted = adapt_norm_layers(self.backbone)

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum, nesterov=h.nesterov)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) before the update."""
        logits = self.backbone(images)
        self.update(generalized_cross_entropy(logits, self.hparams.q).mean())
        return logits
