"""BN-adapt: batch norm with the statistics of the test batch (Schneider et al., NeurIPS 2020)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tta_bench.functional.parameters import BatchNorm, batch_norms, use_batch_statistics
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class BNAdapt(TTAMethod):
    """Normalise each batch by its own statistics, or by a mixture with those of the source, and learn nothing.

    Args:
        backbone: The source model; must have batch norm layers.
        prior: Share of the source's statistics in the mixture. 0 in the tables of continual adaptation and in Nado et
            al. (2020); N / (N + B) in the paper, for B images in a batch and a source that counts as N images.
        seed: Not used; the method draws no random numbers.

    Cost:
        1 forward pass and no backward pass per sample.

    Source:
        The paper's mixture of statistics; repository bethgelab/robustness.

    Departures:
        A layer that sees a single value per channel, which has no variance, uses the source's statistics.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    paper = "Schneider et al., NeurIPS 2020"
    provenance = "statistics of the batch alone, as in the tables of CoTTA"

    def __init__(self, backbone: Backbone, *, prior: float = 0.0, seed: int = 0) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)

    def passes(self) -> tuple[float, float]:
        """1 forward, 0 backward."""
        return (1, 0)

    def configure_adaptation(self) -> None:
        """Freeze everything; keep the source's statistics for the mixture.

        Raises:
            ValueError: If there is no batch norm layer.
        """
        layers = batch_norms(self.backbone)
        if not layers:
            raise ValueError("BNAdapt needs a backbone with batch norm layers, such as a residual network")
        self.backbone.requires_grad_(False)
        for layer in layers:
            layer.register_buffer("source_mean", layer.running_mean)
            layer.register_buffer("source_var", layer.running_var)
            layer.register_forward_pre_hook(partial(_mix, self.hparams.prior))
            layer.register_forward_hook(_forget)
        use_batch_statistics(self.backbone)

    @torch.no_grad()
    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K)."""
        return self.backbone(images)


def _mix(prior: float, layer: BatchNorm, inputs: tuple[Tensor]) -> None:
    """Before a forward pass: mix the statistics of (B, C, ...) over all axes but the channels with the source's."""
    source_mean, source_var = layer.get_buffer("source_mean"), layer.get_buffer("source_var")
    x = inputs[0].to(source_mean.dtype)  # under autocast, features are in half precision and statistics are not
    if x[:, 0].numel() == 1:
        prior = 1.0
    var, mean = torch.var_mean(x, dim=[0, *range(2, x.ndim)], correction=0)
    layer.running_mean = torch.lerp(mean, source_mean, prior)
    layer.running_var = torch.lerp(var, source_var, prior)


def _forget(layer: BatchNorm, *_: object) -> None:
    """After a forward pass: drop the batch statistics, which are not a state."""
    layer.running_mean = layer.running_var = None
