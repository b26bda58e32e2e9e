"""DePT's prompts for the stages of a transformer, and projection heads for their outputs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.segformer import SegFormerBackbone
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.parts.adapters import linear_layer

NAME = "stage_prompts"  # name of the submodule added to a backbone


class ProjectionHead(nn.Module):
    """Cosines between P directions and the output of a perceptron.

    Args:
        dim: Width of the input.
        width: P, and the width of the hidden layer; the perceptron's output is an eighth as wide.
        rng: Draws the weights.

    Source: DINO (Caron et al., ICCV 2021), Sec. 3.1; with two layers, as in repository yhygao/DePT.
    """

    def __init__(self, dim: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        bottleneck = max(1, width // 8)
        hidden = linear_layer(dim, width, 0.02, rng, bias=True)
        self.mlp = nn.Sequential(hidden, nn.GELU(), linear_layer(width, bottleneck, 0.02, rng, bias=True))
        self.directions = nn.Parameter(torch.empty(width, bottleneck).normal_(generator=rng))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., P), in [-1, 1]."""
        return F.normalize(self.mlp(x), dim=-1) @ F.normalize(self.directions, dim=-1).T


class StagePrompts(nn.Module):
    """L prompts and a projection head for each stage.

    Args:
        widths: D_1 ... D_S, the widths of the tokens of each stage.
        length: L.
        width: P, the number of directions of a head.
        rng: Draws the heads, and the prompts (L, D_1 + ... + D_S) with Glorot's uniform initialisation per stage.
    """

    def __init__(self, widths: list[int], length: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        self.widths = widths
        bounds = [math.sqrt(6 / (length + dim)) for dim in widths]
        drawn = [torch.empty(length, d).uniform_(-b, b, generator=rng) for d, b in zip(widths, bounds, strict=True)]
        self.prompts = nn.Parameter(torch.cat(drawn, dim=1))
        self.heads = nn.ModuleList(ProjectionHead(dim, width, rng) for dim in widths)

    def per_stage(self) -> tuple[Tensor, ...]:
        """The prompts (L, D_s) of each stage."""
        return self.prompts.split(self.widths, dim=1)


def add_stage_prompts(backbone: Backbone, stages: int, length: int, width: int, rng: torch.Generator) -> None:
    """Freeze a transformer except for its classifier, and add trainable prompts and heads to the backbone.

    Raises:
        ValueError: If it is not a transformer, has features of two tokens, or is a SegFormer with another number of
            stages.
    """
    if isinstance(backbone, ViTBackbone):
        if backbone.feature_dim != backbone.patch_dim:
            raise ValueError(
                "DePT projects features and prompts with the same head, so it needs a transformer whose feature is "
                "one token: choose another model than a distilled DeiT"
            )
        widths, classifier = [backbone.feature_dim] * stages, backbone.vit.head
    elif isinstance(backbone, SegFormerBackbone):
        widths, classifier = backbone.widths, backbone.head.conv_seg
        if stages != len(widths):
            raise ValueError(f"a SegFormer has {len(widths)} stages: set stages={len(widths)}")
    else:
        raise ValueError("DePT adds prompts to the stages of a network: it needs a vision transformer or a SegFormer")
    backbone.requires_grad_(False)
    classifier.requires_grad_(True)
    added = StagePrompts(widths, length, width, rng)
    backbone.add_module(NAME, added.to(next(backbone.parameters())))


def stage_prompts(backbone: Backbone) -> StagePrompts:
    """The module that ``add_stage_prompts`` added."""
    added = backbone.get_submodule(NAME)
    assert isinstance(added, StagePrompts)
    return added


class Prompted(NamedTuple):
    """Encoder outputs of a batch with the prompts of each stage."""

    encoded: Any  # input of ``classify``
    features: Tensor  # (B, D), of whole images
    outputs: list[Tensor]  # (B, L, D_s): the prompts at the end of each stage


def encode_prompted(backbone: Backbone, images: Tensor) -> Prompted:
    """Encode images (B, C, H, W) in [0, 1] with stage prompts.

    In a SegFormer prompts are only keys and values, so they have no output. It is replaced by what they would attend
    to: the mean over the positions of the stage's map, weighted by attention without projections (ours). The feature
    of a whole image is the mean over the positions of the last map.
    """
    embedded, prompts = backbone.embed(images), stage_prompts(backbone)
    if isinstance(backbone, ViTBackbone):
        features, outputs = backbone.encode_stages(embedded, torch.stack(prompts.per_stage()))
        return Prompted(features, features, list(outputs.unbind(dim=1)))
    assert isinstance(backbone, SegFormerBackbone)
    encoded = backbone.encode(embedded, prompts.prompts)
    maps = [each.flatten(2).mT for each in encoded.maps]  # (B, N_s, D_s)
    looked_at = [
        F.scaled_dot_product_attention(prompt.expand(len(images), -1, -1), each, each)
        for prompt, each in zip(prompts.per_stage(), maps, strict=True)
    ]
    return Prompted(encoded, maps[-1].mean(dim=1), looked_at)


def project(backbone: Backbone, seen: Prompted) -> tuple[Tensor, Tensor]:
    """Project features with the last stage's head to (B, P), and outputs with each stage's head to (B, S, L, P)."""
    heads = stage_prompts(backbone).heads
    projected = torch.stack([head(output) for head, output in zip(heads, seen.outputs, strict=True)], dim=1)
    return heads[-1](seen.features), projected
