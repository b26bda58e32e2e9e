"""Pseudo-label: test-time adaptation by training on one's own predictions (Lee, ICML Workshop 2013)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, sgd_or_adam
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class PseudoLabel(TTAMethod):
    """Minimise the cross-entropy with the predicted classes of the confident images of each batch.

    Tables of continual adaptation list this baseline without its settings; the defaults are those of Tent, so that
    the two differ in the loss only.

    Args:
        backbone: The source model.
        lr: Learning rate; Tent's, ours.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD; Tent's, ours.
        nesterov: Whether SGD uses Nesterov momentum; Tent's, ours.
        threshold: Images with a larger maximum probability than this are trained on. 0 (all images) in repository
            TaesikGong/NOTE, 0.9 in fiveai/LAME.
        part: Which norm layers are adapted: ``all``, or ``early`` as in fiveai/LAME.
        seed: Not used; the method draws no random numbers.

    Cost:
        1 forward pass and the share of confident images in backward passes per sample.

    Source:
        Eq. 15 of the paper without its labeled term; re-implementation.

    Departures:
        The paper labels the images once per weight update, of a network that it trains from scratch; at test time a
        batch is labeled when it arrives, by the model adapted so far.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    paper = "Lee, ICML Workshop 2013"
    provenance = "re-implementation; Tent's optimizer, ours"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        nesterov: bool = True,
        threshold: float = 0.0,
        part: Literal["all", "early"] = "all",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._confident, self._batch_size = 0, 1  # of the last batch

    def configure_adaptation(self) -> None:
        """Train the norm layers only."""
        self.adapted = adapt_norm_layers(self.backbone, self.hparams.part)

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum, nesterov=h.nesterov)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) before the update."""
        logits = self.backbone(images)
        confidence = logits.detach().softmax(dim=1).amax(dim=1)
        confident = logits[confidence > self.hparams.threshold]
        self._confident, self._batch_size = len(confident), len(images)
        if len(confident) > 0:
            self.update(cross_entropy(confident, confident.argmax(dim=1)))
        return logits

    def diagnostics(self) -> dict[str, float]:
        """Confident images of the last batch."""
        return {"confident": float(self._confident)}

    def passes(self) -> tuple[float, float]:
        """1 forward; backward for the confident images."""
        return (1, self._confident / self._batch_size)


class PseudoLabelLAME(PseudoLabel):
    """Pseudo-label as LAME's repository runs it: confident images, early norm layers, prediction after the update.

    Args:
        backbone: The source model.
        lr: Learning rate of SGD; 0.001 was the best of LAME's grid.
        momentum: Momentum of SGD; 0 in that repository.
        threshold: An image teaches if its largest probability is above; 0.9 in that repository.
        seed: Not used; the method draws no random numbers.

    Cost:
        2 forward passes and the share of confident images in backward passes per sample.

    Source:
        Repository fiveai/LAME, with which LAME (Boudiaf et al., CVPR 2022) compares itself.

    Departures:
        The scores are logits, where the repository returns probabilities; the argmax is the same. No 1e-10 is added to
        the probability in the loss.
    """

    prediction_timing = PredictionTiming.AFTER_UPDATE
    provenance = "released code (fiveai/LAME)"

    def __init__(
        self, backbone: Backbone, *, lr: float = 1e-3, momentum: float = 0.0, threshold: float = 0.9, seed: int = 0
    ) -> None:
        super().__init__(
            backbone, lr=lr, momentum=momentum, nesterov=False, threshold=threshold, part="early", seed=seed
        )

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) of a second pass, after the update."""
        super().forward_and_adapt(images)
        with torch.no_grad():
            return self.backbone(images)

    def passes(self) -> tuple[float, float]:
        """2 forward; backward for the confident images."""
        return (2, self._confident / self._batch_size)
