"""DeYO: destroy your object (Lee et al., ICLR 2024)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, sgd_or_adam, softmax_entropy
from tta_bench.functional.entropy import at_least_float32
from tta_bench.functional.patches import shuffle_patches
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class DeYO(TTAMethod):
    """Minimise the weighted entropy of images predicted confidently, and less so once their shape is destroyed.

    The difference is PLPD, the pseudo-label probability difference: how much of the predicted class's probability is
    lost when the image's patches are shuffled.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-3 / 64 per image of a batch in the released code for ViT-B.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        entropy_margin: tau_Ent as a share of ln(num_classes), below which an image is sure; 0.5 in the released code.
        weight_margin: Ent_0 as a share of ln(num_classes), the entropy of weight 1; 0.4 in the released code.
        plpd_threshold: tau_PLPD; 0.2 in the released code for ViT-B (0.3 for mild shifts on a ResNet).
        grid: Patches per side of the shuffled image; 4 in the released code.
        seed: Seed of the permutations.

    Cost:
        1 forward pass, another for the share of sure images, and the share of selected ones in backward passes per
        sample.

    Source:
        The paper's two filters and its weight; repository Jhyun17/DeYO.

    Departures:
        None.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    paper = "Lee et al., ICLR 2024"
    provenance = "released code (Jhyun17/DeYO), ViT-B on ImageNet-C"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        entropy_margin: float = 0.5,
        weight_margin: float = 0.4,
        plpd_threshold: float = 0.2,
        grid: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._last = {"sure": math.nan, "selected": math.nan}  # images of the last batch
        self._batch_size = 1

    def configure_adaptation(self) -> None:
        """Train the norm layers of the early blocks only, as SAR does."""
        self.adapted = adapt_norm_layers(self.backbone, "early")

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over those norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) before the update."""
        logits = self.backbone(images)
        uniform = math.log(logits.shape[1])  # the largest entropy
        entropy = softmax_entropy(logits)
        sure = entropy < self.hparams.entropy_margin * uniform
        entropy = entropy[sure]
        plpd = self.plpd(images[sure], logits[sure]) if len(entropy) > 0 else entropy.detach()
        selected = plpd > self.hparams.plpd_threshold
        self._batch_size = len(images)
        self._last = {"sure": float(len(entropy)), "selected": float(selected.sum())}
        if self._last["selected"] > 0:
            entropy, plpd = entropy[selected], plpd[selected]
            weights = (self.hparams.weight_margin * uniform - entropy.detach()).exp() + plpd.exp()
            self.update((weights * entropy).mean())
        return logits

    @torch.no_grad()
    def plpd(self, images: Tensor, logits: Tensor) -> Tensor:
        """Drop in the predicted class's probability when the patches of an image are shuffled.

        Args:
            images: (N, C, H, W) in [0, 1].
            logits: (N, K), theirs.

        Returns:
            Differences (N,) in [-1, 1].
        """
        order = self.draw_order(len(images)).to(images.device)
        shuffled = self.backbone(shuffle_patches(images, order))
        lost = at_least_float32(logits).softmax(dim=1) - at_least_float32(shuffled).softmax(dim=1)
        return lost.gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1)

    def draw_order(self, count: int) -> Tensor:
        """Draw a permutation of the patches for each of ``count`` images: (count, grid^2) int64."""
        return torch.rand(count, self.hparams.grid**2, generator=self.rng).argsort(dim=1)

    def passes(self) -> tuple[float, float]:
        """1 forward and 1 for the sure images; backward for the selected ones."""
        return (1 + self._last["sure"] / self._batch_size, self._last["selected"] / self._batch_size)

    def diagnostics(self) -> dict[str, float]:
        """Sure and selected images of the last batch."""
        return self._last
