"""Robust batch norm: source statistics that slowly follow those of the batches that a method learns from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from tta_bench.functional.parameters import BatchNorm


class RobustBN(BatchNorm):
    """Normalise with a running mean and variance; while ``follows`` is set, update them by ``alpha`` first.

    Like other layers that use batch statistics, it has no ``running_mean`` as in torch, so that code which checks this
    knows that it must see whole batches.

    Args:
        layer: The source model's layer, whose weights are used and whose statistics are copied.
        alpha: Weight of the batch in the new mean and (biased) variance.

    Raises:
        ValueError: If ``layer`` has no statistics.

    Source:
        RoTTA (Yuan et al., CVPR 2023) and repository BIT-DA/RoTTA.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, layer: BatchNorm, alpha: float) -> None:
        if layer.running_mean is None or layer.running_var is None:
            raise ValueError("robust batch norm starts from the source statistics, but this layer has none")
        super().__init__(layer.num_features, eps=layer.eps, track_running_stats=False)
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("mean", layer.running_mean.clone())
        self.register_buffer("var", layer.running_var.clone())
        self.alpha = alpha
        self.follows = False

    def forward(self, input: Tensor) -> Tensor:
        """Normalise features (B, C, ...). Gradients flow through the batch's part of the statistics."""
        if not self.follows:
            return batch_norm(input, self.mean, self.var, self.weight, self.bias, eps=self.eps)
        var, mean = torch.var_mean(input, dim=[0, *range(2, input.ndim)], unbiased=False)
        mean, var = self.mean.lerp(mean, self.alpha), self.var.lerp(var, self.alpha)
        self.mean, self.var = mean.detach(), var.detach()
        scale = self.weight * (var + self.eps).rsqrt()
        shape = (1, -1) + (1,) * (input.ndim - 2)
        return input * scale.view(shape) + (self.bias - mean * scale).view(shape)


def use_robust_batch_norm(module: nn.Module, alpha: float) -> None:
    """Replace every batch norm layer inside ``module`` by a robust one.

    Raises:
        ValueError: If a layer does more than ``BatchNorm1d`` or ``BatchNorm2d``.
    """
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, BatchNorm):
                if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d):
                    raise ValueError(f"robust batch norm cannot replace {type(layer).__name__}")
                setattr(parent, name, RobustBN(layer, alpha))


@contextmanager
def following(*networks: nn.Module) -> Iterator[None]:
    """Context in which the statistics of robust batch norm layers follow the forwarded batches."""
    layers = [layer for network in networks for layer in network.modules() if isinstance(layer, RobustBN)]
    for layer in layers:
        layer.follows = True
    try:
        yield
    finally:
        for layer in layers:
            layer.follows = False
