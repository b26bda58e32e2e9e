"""EcoTTA's network: a frozen network in consecutive partitions, each followed by a small trainable meta part."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from timm.models.resnet import ResNet
from torch import Tensor, nn
from torch.nn.utils import skip_init

from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.segformer import SegFormerBackbone, Stage
from tta_bench.models.backbones.timm_cnn import TimmBackbone
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.parallel import gather
from tta_bench.models.parts.adapters import linear_layer


class TokenMeta(nn.Module):
    """scale * f(x) + shift + U gelu(D x): scale and shift per channel, and a bottleneck parallel to the partition.

    Scale is initialised to one, shift and U to zero, so the initial output is f(x).

    Args:
        dim: Width of a token.
        bottleneck: Rows of D.
        rng: Draws D.
    """

    def __init__(self, dim: int, bottleneck: int, rng: torch.Generator) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.down = linear_layer(dim, bottleneck, 0.02, rng, bias=True)
        self.up = linear_layer(bottleneck, dim, 0.0, rng, bias=True)

    def forward(self, x: Tensor, frozen: Tensor) -> Tensor:
        """Combine tokens before and after the partition, both (B, N, D)."""
        out: Tensor = self.scale * frozen + self.shift + self.up(F.gelu(self.down(x)))
        return out


class ConvMeta(nn.Module):
    """BN(f(x)) + relu(BN(conv(x))), with a 3x3 convolution parallel to the partition.

    Args:
        width_in: Channels of x.
        width_out: Channels of f(x).
        stride: Stride of the convolution, that of the partition.
        rng: Draws the kernel.

    Source: EcoTTA (Song et al., CVPR 2023), and the authors' example in repository Lily-Le/EcoTTA.
    """

    def __init__(self, width_in: int, width_out: int, stride: int, rng: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width_out)
        conv = skip_init(nn.Conv2d, width_in, width_out, kernel_size=3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu", generator=rng)
        self.branch = nn.Sequential(conv, nn.BatchNorm2d(width_out), nn.ReLU())

    def forward(self, x: Tensor, frozen: Tensor) -> Tensor:
        """Combine maps before (B, C, H, W) and after (B, C', H', W') the partition to (B, C', H', W')."""
        out: Tensor = self.norm(frozen) + self.branch(x)
        return out


class MapMeta(nn.Module):
    """scale * f(x) + shift + U gelu(D x): as ``TokenMeta``, for maps that f downsamples.

    D is a 3x3 convolution with the partition's stride, U a linear layer at every position.

    Args:
        width_in: Channels of x.
        width_out: Channels of f(x).
        stride: Stride of the partition.
        bottleneck: Channels of D x.
        rng: Draws D.
    """

    def __init__(self, width_in: int, width_out: int, stride: int, bottleneck: int, rng: torch.Generator) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Parameter(value.view(-1, 1, 1)) for value in (torch.ones(width_out), torch.zeros(width_out))
        )
        self.down = skip_init(nn.Conv2d, width_in, bottleneck, kernel_size=3, stride=stride, padding=1)
        nn.init.kaiming_normal_(self.down.weight, generator=rng)
        self.up = skip_init(nn.Conv2d, bottleneck, width_out, kernel_size=1)
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, x: Tensor, frozen: Tensor) -> Tensor:
        """Combine maps before (B, C, H, W) and after (B, C', H', W') the partition to (B, C', H', W')."""
        out: Tensor = self.scale * frozen + self.shift + self.up(F.gelu(self.down(x)))
        return out


class Partition(nn.Module):
    """A frozen part f of the network and its meta part m.

    Attributes:
        distances: List to which each forward pass appends mean |m(x) - f(x)| (B,), or None. Its gradients reach only
            this m, neither f nor earlier partitions.
    """

    def __init__(self, frozen: nn.Module, meta: nn.Module) -> None:
        super().__init__()
        self.frozen, self.meta = frozen, meta
        self.distances: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output of the meta part from the input of the partition."""
        frozen = self.frozen(x)
        if self.distances is not None:
            with torch.enable_grad():
                x_k, f_k = x.detach(), frozen.detach()
                self.distances.append((self.meta(x_k, f_k) - f_k).abs().flatten(1).mean(dim=1))
        out: Tensor = self.meta(x, frozen)
        return out


def attach_meta_parts(backbone: Backbone, count: int, bottleneck: int, rng: torch.Generator) -> list[nn.Parameter]:
    """Freeze a network, split it into ``count`` partitions and add a meta part to each.

    Partitions are groups of transformer blocks, or of stages of a residual network, as equal in number as possible;
    those of a SegFormer, whose head needs the map of every stage, are its stages.

    Returns:
        The trainable parameters.

    Raises:
        ValueError: If the network is neither a vision transformer nor a timm ResNet nor a SegFormer, has fewer blocks
            than partitions, or is a SegFormer with another number of stages.
    """
    backbone.requires_grad_(False)
    network = backbone.network if isinstance(backbone, TimmBackbone) else None
    if isinstance(backbone, ViTBackbone):
        groups = _grouped(list(backbone.vit.blocks), count)
        metas: list[nn.Module] = [TokenMeta(backbone.vit.embed_dim, bottleneck, rng) for _ in groups]
        backbone.vit.blocks = _joined(groups, metas, backbone)
    elif isinstance(network, ResNet):
        groups = _grouped([network.layer1, network.layer2, network.layer3, network.layer4], count)
        info = network.feature_info  # of the stem and the four stages
        widths = [stage["num_chs"] for stage in info]
        strides = [1, *(b["reduction"] // a["reduction"] for a, b in pairwise(info[1:]))]
        ends = [sum(len(g) for g in groups[: k + 1]) for k in range(count)]
        metas = [
            ConvMeta(widths[a], widths[b], prod(strides[a:b]), rng) for a, b in zip([0, *ends], ends, strict=False)
        ]
        network.layer1 = _joined(groups, metas, backbone)
        network.layer2 = network.layer3 = network.layer4 = nn.Identity()
    elif isinstance(backbone, SegFormerBackbone):
        stages = [stage for stage in backbone.stages if isinstance(stage, Stage)]
        if count != len(stages):
            raise ValueError(f"a SegFormer's partitions are its {len(stages)} stages: set partitions={len(stages)}")
        steps = [stage.patch_embed.projection.stride[0] for stage in stages]
        channels = pairwise([len(backbone.normalize.mean), *backbone.widths])
        metas = [MapMeta(a, b, step, bottleneck, rng) for (a, b), step in zip(channels, steps, strict=True)]
        backbone.stages = nn.ModuleList(_joined([[stage] for stage in stages], metas, backbone))
    else:
        raise ValueError(f"EcoTTA needs a transformer or a ResNet, but {type(network).__name__} is neither")
    return [p for partition in partitions(backbone) for p in partition.meta.parameters()]


def partitions(backbone: Backbone) -> list[Partition]:
    """The partitions of a network, in order."""
    return [m for m in backbone.modules() if isinstance(m, Partition)]


def _grouped(blocks: list[nn.Module], count: int) -> list[list[nn.Module]]:
    if not 1 <= count <= len(blocks):
        raise ValueError(f"{len(blocks)} blocks cannot be split into {count} partitions")
    bounds = [len(blocks) * k // count for k in range(count + 1)]
    return [blocks[a:b] for a, b in pairwise(bounds)]


def _joined(groups: list[list[nn.Module]], metas: list[nn.Module], backbone: Backbone) -> nn.Sequential:
    like = next(backbone.parameters())
    parts = [Partition(nn.Sequential(*g), meta.to(like)) for g, meta in zip(groups, metas, strict=True)]
    return nn.Sequential(*parts)


def encode_with_distances(backbone: Backbone, images: Tensor, *, local: bool) -> tuple[Tensor, Tensor]:
    """Compute the output of ``encode`` and the mean distances |m_k(x_k) - f_k(x_k)| (B, K).

    Args:
        backbone: A network with meta parts.
        images: (B, C, H, W) in [0, 1].
        local: Whether only the distances have a graph, which saves the memory of a graph through the network.
    """
    parts, distances = partitions(backbone), list[Tensor]()
    for part in parts:
        part.distances = distances
    try:
        with torch.set_grad_enabled(not local):
            encoded = backbone.encode(backbone.embed(images))
    finally:
        for part in parts:
            part.distances = None
    return encoded, gather(torch.stack(distances, dim=1), len(images))
