"""Linear layers with two parallel low-rank branches, as in ViDA's attention layers."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor, nn
from torch.nn.utils import skip_init

from tta_bench.models.backbones.segformer import KeyValueAttention


def linear_layer(width_in: int, width_out: int, std: float, rng: torch.Generator, *, bias: bool) -> nn.Linear:
    """Create a linear layer with weights from N(0, std^2), drawn from ``rng`` on the CPU; a bias is zero at first."""
    layer = skip_init(nn.Linear, width_in, width_out, bias=bias)
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.normal_(0, std, generator=rng)
        if bias:
            layer.bias.zero_()
    return layer


class BranchScales(nn.Module):
    """The two factors that all adapters of one network share.

    Attributes:
        low: Factor of the low-rank branches, a scalar.
        high: Factor of the high-rank branches, a scalar.
    """

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.ones(()))
        self.register_buffer("high", torch.ones(()))


class AdaptedLinear(nn.Module):
    """W x + b + s_low U_low D_low x + s_high U_high D_high x, where U starts at zero: at first, the linear layer.

    Args:
        linear: W and b.
        scales: s_low and s_high.
        low_rank: Width of the low-rank branch.
        high_rank: Width of the high-rank branch; both are limited to the width of the input (ours), which matters in
            the narrow stages of hierarchical transformers.
        rng: Draws each D from N(0, 1 / rank^2).

    Source: ViDA (Liu et al., ICLR 2024); initial values as in repository Yangsenqiao/vida.
    """

    def __init__(
        self, linear: nn.Linear, scales: BranchScales, low_rank: int, high_rank: int, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.linear, self.scales = linear, scales
        self.low = self._branch(low_rank, rng)
        self.high = self._branch(high_rank, rng)

    def _branch(self, rank: int, rng: torch.Generator) -> nn.Sequential:
        rank = min(rank, self.linear.in_features)
        down = linear_layer(self.linear.in_features, rank, 1 / rank, rng, bias=False)
        up = linear_layer(rank, self.linear.out_features, 0.0, rng, bias=False)
        return nn.Sequential(down, up).to(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width in) to (..., width out)."""
        out: Tensor = self.linear(x) + self.scales.low * self.low(x) + self.scales.high * self.high(x)
        return out


def inject_adapters(network: nn.Module, low_rank: int, high_rank: int, rng: torch.Generator) -> None:
    """Put adapters on every linear layer inside the attention layers of ``network``.

    Raises:
        ValueError: If there are no attention layers.
    """
    layers = [m for m in network.modules() if isinstance(m, Attention | KeyValueAttention)]
    if not layers:
        raise ValueError("ViDA adds adapters to attention layers: it needs a vision transformer")
    scales = BranchScales().to(next(layers[0].parameters()))
    for attention in layers:
        for name, linear in list(attention.named_children()):
            if isinstance(linear, nn.Linear):
                setattr(attention, name, AdaptedLinear(linear, scales, low_rank, high_rank, rng))


def adapter_parameters(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that ``inject_adapters`` added."""
    layers = [m for m in network.modules() if isinstance(m, AdaptedLinear)]
    return [p for layer in layers for branch in (layer.low, layer.high) for p in branch.parameters()]


def branch_scales(network: nn.Module) -> BranchScales:
    """The scales that all adapters in ``network`` share."""
    return next(m for m in network.modules() if isinstance(m, BranchScales))
