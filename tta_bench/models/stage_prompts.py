"""Prompts for the stages of a vision transformer and heads for what becomes of them, as DePT adds them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_bench.models.adapters import linear_layer
from tta_bench.models.backbone import Backbone
from tta_bench.models.vit import ViTBackbone

NAME = "stage_prompts"  # of the submodule that a backbone gets


class ProjectionHead(nn.Module):
    """Cosines of P directions with the output of a perceptron.

    Args:
        dim: Width of the input.
        width: P, and the width of the hidden layer; the perceptron's output has an eighth of it.
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
        """(..., D) -> (..., P), in [-1, 1]."""
        return F.normalize(self.mlp(x), dim=-1) @ F.normalize(self.directions, dim=-1).T


class StagePrompts(nn.Module):
    """L prompts and a projection head for each of S stages; prompts are drawn uniformly, by Glorot's rule."""

    def __init__(self, stages: int, length: int, dim: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        bound = math.sqrt(6 / (length + dim))
        self.prompts = nn.Parameter(torch.empty(stages, length, dim).uniform_(-bound, bound, generator=rng))
        self.heads = nn.ModuleList(ProjectionHead(dim, width, rng) for _ in range(stages))


def add_stage_prompts(backbone: Backbone, stages: int, length: int, width: int, rng: torch.Generator) -> None:
    """Freeze a transformer but for its classifier, and add trainable prompts and heads, inside the backbone.

    Raises:
        ValueError: If it is no vision transformer.
    """
    if not isinstance(backbone, ViTBackbone):
        raise ValueError("DePT prompts the stages of a network: it needs a vision transformer")
    backbone.requires_grad_(False)
    backbone.vit.head.requires_grad_(True)
    added = StagePrompts(stages, length, backbone.feature_dim, width, rng)
    backbone.add_module(NAME, added.to(next(backbone.parameters())))


def stage_prompts(backbone: Backbone) -> StagePrompts:
    """What ``add_stage_prompts`` added."""
    added = backbone.get_submodule(NAME)
    assert isinstance(added, StagePrompts)
    return added


def encode_prompted(backbone: Backbone, images: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) in [0, 1] -> features (B, D) and what the stages made of their prompts (B, S, L, D)."""
    assert isinstance(backbone, ViTBackbone)
    return backbone.encode_stages(backbone.embed(images), stage_prompts(backbone).prompts)


def project(backbone: Backbone, features: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """What ``encode_prompted`` gave -> features (B, P) by the last stage's head, outputs (B, S, L, P) by each one's."""
    heads = stage_prompts(backbone).heads
    projected = torch.stack([head(outputs[:, stage]) for stage, head in enumerate(heads)], dim=1)
    return heads[-1](features), projected
