"""SAR: sharpness-aware and reliable entropy minimization (Niu et al., ICLR 2023)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, sam_ascend, sam_return, sgd_or_adam, softmax_entropy
from tta_bench.functional.segmentation import selected_images
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class SAR(TTAMethod):
    """Minimise the entropy of reliable images and its sharpness, and return to the source when it collapses.

    On a network that scores pixels, pixels are selected, and the losses are means over those selected in the batch.
    This, and which of its layers count as early, are our choices.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-3 / 64 per image of a batch in the released code for ViT-B, twice that for batches of one.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999); takes the step with the gradient at the ascended weights.
        momentum: Momentum of SGD.
        rho: Length of the ascent before that gradient; the paper's 0.05.
        entropy_margin: E_0 as a share of ln(num_classes), below which an image is reliable; the paper's 0.4.
        reset_threshold: e_0, in nats: the weights return to the source when the average falls below it. The paper's
            0.2 is for 1000 classes; with ten, or on pixels, a healthy model may be below it.
        average_after_recovery: ``cleared``, as in mariodoebler/test-time-adaptation, or ``kept``, as in the released
            code, where recovery repeats until the average has climbed over the threshold.
        none_reliable: What a batch without a reliable image does: ``skip`` the step, or ``coast``, the released
            code's step with a zero gradient, which momentum goes on with.
        seed: Not used; the method draws no random numbers.

    States:
        entropy_average (1,): of the second loss, 0.1 of it from the last batch; empty before the first.

    Cost:
        2 forward passes and the shares of the images selected in each in backward passes per sample; 1 and none if
        nothing is selected. An image of which any pixel is selected counts.

    Source:
        Alg. 1 of the paper; repository mr-eggplant/SAR.

    Departures:
        The two switches above: the released code is ``kept`` and ``coast``. In both, a
        recovery leaves the momentum untouched. The released threshold is always 0.2, whatever is configured.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    paper = "Niu et al., ICLR 2023"
    provenance = "released code (mr-eggplant/SAR), ViT-B on ImageNet-C"
    entropy_average: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        rho: float = 0.05,
        entropy_margin: float = 0.4,
        reset_threshold: float = 0.2,
        average_after_recovery: Literal["cleared", "kept"] = "cleared",
        none_reliable: Literal["skip", "coast"] = "skip",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._forward, self._selected = 0, (torch.zeros(1, dtype=torch.bool),) * 2  # of the last batch
        self._last = {"reliable": math.nan, "reliable_twice": math.nan, "recovered": math.nan}  # of the last batch

    def configure_adaptation(self) -> None:
        """Train the norm layers of the early blocks only."""
        self.adapted = adapt_norm_layers(self.backbone, "early")
        self.add_state("entropy_average", torch.empty(0))

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over those norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) of the first pass, before the update."""
        logits = self.backbone(images)
        margin = self.hparams.entropy_margin * math.log(logits.shape[1])
        entropy = softmax_entropy(logits)
        reliable = entropy < margin
        first = entropy[reliable]
        if len(first) == 0 and self.hparams.none_reliable == "skip":
            self._record(1, reliable, reliable, 0, 0, recovered=False)
            return logits
        self._set_gradients(first)
        before = sam_ascend(self.adapted, self.hparams.rho)
        entropy = softmax_entropy(self.backbone(images))
        twice = reliable & (entropy < margin)
        second = entropy[twice]
        self._set_gradients(second)
        sam_return(self.adapted, before)
        if len(second) > 0 or self.hparams.none_reliable == "coast":
            assert self.optimizer is not None
            self.optimizer.step()
        if len(second) > 0:
            self._follow(second.detach().mean())
        recovered = bool((self.entropy_average < self.hparams.reset_threshold).any())
        if recovered:
            self._recover()
        self._record(2, reliable, twice, len(first), len(second), recovered)
        return logits

    def _set_gradients(self, entropy: Tensor) -> None:
        """Gradients of the mean entropy; zero if nothing is selected."""
        self.backbone.zero_grad()
        self.backward(entropy.sum() / max(len(entropy), 1))

    def _follow(self, loss: Tensor) -> None:
        before = self.entropy_average if len(self.entropy_average) > 0 else loss[None]
        self.entropy_average = 0.9 * before + 0.1 * loss

    def _recover(self) -> None:
        self.restore_parameters()
        if self.hparams.average_after_recovery == "cleared":
            self.entropy_average = self.entropy_average[:0]

    def _record(self, forward: int, reliable: Tensor, twice: Tensor, once: int, again: int, recovered: bool) -> None:
        self._forward, self._selected = forward, (reliable, twice)
        counts = (float(once), float(again), float(recovered))
        self._last = dict(zip(self._last, counts, strict=True))

    def passes(self) -> tuple[float, float]:
        """2 forward; backward for the images selected in the first pass and for those selected in both."""
        return (self._forward, sum(map(selected_images, self._selected)) / len(self._selected[0]))

    def diagnostics(self) -> dict[str, float]:
        """Images (or pixels) selected once and twice, whether the weights recovered, and what decides that."""
        average = float(self.entropy_average) if len(self.entropy_average) > 0 else math.nan
        return {**self._last, "entropy_average": average}
