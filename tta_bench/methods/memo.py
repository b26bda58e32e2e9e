"""MEMO: marginal entropy minimization with one test point (Zhang et al., NeurIPS 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from tta_bench.functional import softmax_entropy
from tta_bench.functional.augmix import augmix_views
from tta_bench.functional.entropy import at_least_float32
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class MEMO(TTAMethod):
    """Take one step from the source model per image that makes predictions for its augmented views agree and confident.

    Episodic: no state is carried from one image to the next, so the order of the stream does not matter.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-5 in the released code for transformers.
        optimizer: ``adamw`` or ``sgd`` (without momentum).
        weight_decay: Of either optimizer; 0.01 in the released code for transformers.
        num_views: AugMix views per image; 64 in the released code on ImageNet.
        seed: Seed of the views.

    Cost:
        ``num_views`` + 1 forward and ``num_views`` backward passes per sample, one image at a time: very slow.

    Source:
        The paper's marginal entropy; repository zhangmarvin/memo.

    Departures:
        The optimizer starts afresh for each image as the weights do; the released code keeps AdamW's moments. Batch
        norm layers keep the statistics of the source, of which the released code mixes 16/17 with the views'.
        Views are those of the ImageNet code on every data set; the CIFAR code crops after padding by 4 pixels.
    """

    prediction_timing = PredictionTiming.AFTER_UPDATE
    paper = "Zhang et al., NeurIPS 2022"
    provenance = "released code (zhangmarvin/memo), its setting for transformers on ImageNet-C"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-5,
        optimizer: Literal["adamw", "sgd"] = "adamw",
        weight_decay: float = 0.01,
        num_views: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)

    def configure_adaptation(self) -> None:
        """Train everything."""
        self.backbone.requires_grad_(True)

    def configure_optimizers(self) -> Optimizer:
        """AdamW or SGD over all parameters."""
        h = self.hparams
        cls = AdamW if h.optimizer == "adamw" else SGD
        return cls(self.backbone.parameters(), lr=h.lr, weight_decay=h.weight_decay)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K), each from the network adapted to that image."""
        return torch.cat([self._adapt_to(image) for image in images.split(1)])

    def _adapt_to(self, image: Tensor) -> Tensor:
        self.restore_parameters()
        self.restart_optimizer()
        views = augmix_views(image, self.hparams.num_views, self.rng)
        self.update(marginal_entropy(self.backbone(views)))
        with torch.no_grad():
            return self.backbone(image)

    def passes(self) -> tuple[float, float]:
        """``num_views`` + 1 forward, ``num_views`` backward."""
        return (self.hparams.num_views + 1, self.hparams.num_views)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats, of shape (), of the mean of the rows' softmax: low if all (N, K) agree confidently.

    Source: MEMO (Zhang et al., NeurIPS 2022), Sec. 3.

    Example:
        >>> marginal_entropy(torch.tensor([[50.0, 0.0], [0.0, 50.0]])).exp()
        tensor(2.)
    """
    log_sum = at_least_float32(logits).log_softmax(dim=1).logsumexp(dim=0, keepdim=True)  # softmax takes the 1 / N
    return softmax_entropy(log_sum).squeeze(0)
