"""Kinds of prompts: tokens beside the patches, or the affine parameters of the norm layers.

A prompt space holds the prompt that is being learned. DPCore stores, mixes and averages values of it.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from tta_bench.functional.parameters import adapt_norm_layers
from tta_bench.models.backbones.base import Backbone, Embedded


class PromptSpace(Protocol):
    """A prompt that can be set, learned, and applied to a backbone; features are the output of ``encode``."""

    trainable: list[nn.Parameter]

    def value(self) -> Tensor:
        """The current prompt."""

    def load(self, value: Tensor) -> None:
        """Set the current prompt."""

    def embed(self, backbone: Backbone, images: Tensor) -> Embedded | Tensor:
        """Compute the part of a forward pass that is constant while a prompt is learned on images (B, C, H, W)."""

    def raw(self, backbone: Backbone, embedded: Embedded | Tensor) -> Tensor:
        """Features (B, D) of the source model, without any prompt."""

    def prompted(self, backbone: Backbone, embedded: Embedded | Tensor) -> Tensor:
        """Features (B, D) under the current prompt."""


class TokenSpace(nn.Module):
    """L learned tokens: between [CLS] and the patches, or wherever the backbone inserts them.

    Args:
        backbone: Must take prompts.
        length: L.
        distribution: Distribution of the initial value; both have the same standard deviation.
        rng: Draws the initial value.

    Raises:
        ValueError: If the backbone takes no prompts.

    Source: VPT (Jia et al., ECCV 2022), shallow prompts and their initialisation.
    """

    def __init__(
        self, backbone: Backbone, length: int, distribution: Literal["gaussian", "uniform"], rng: torch.Generator
    ) -> None:
        super().__init__()
        if backbone.prompt_dim is None:
            raise ValueError("prompt tokens need a backbone that takes prompts, such as a vision transformer")
        tokens = torch.empty(length, backbone.prompt_dim)
        std = math.sqrt(2 / (3 * (backbone.patch_size or 1) ** 2 + backbone.prompt_dim))
        if distribution == "uniform":
            tokens.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std, generator=rng)
        else:
            tokens.normal_(0, std, generator=rng)
        self.prompt = nn.Parameter(tokens.to(backbone.dtype))
        self.trainable = [self.prompt]

    def value(self) -> Tensor:
        """(L, D)."""
        return self.prompt.detach().clone()

    def load(self, value: Tensor) -> None:
        """Set the tokens, (L, D)."""
        self.prompt.data.copy_(value)

    @torch.no_grad()
    def embed(self, backbone: Backbone, images: Tensor) -> Embedded | Tensor:
        """Patches with their positions; prompts come after them."""
        return backbone.embed(images)

    @torch.no_grad()
    def raw(self, backbone: Backbone, embedded: Embedded | Tensor) -> Tensor:
        """Features (B, D) without tokens."""
        assert isinstance(embedded, Embedded)
        return backbone.encode(embedded)

    def prompted(self, backbone: Backbone, embedded: Embedded | Tensor) -> Tensor:
        """Features (B, D) with the tokens."""
        assert isinstance(embedded, Embedded)
        return backbone.encode(embedded, self.prompt)


class NormSpace(nn.Module):
    """The affine parameters of all norm layers, as one vector of P scalars; for networks without tokens.

    Args:
        backbone: Must have normalisation layers; everything else in it is frozen.

    Source: DPCore (Zhang et al., ICML 2025), Exp-3 of the component analysis.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.trainable = adapt_norm_layers(backbone)
        self.register_buffer("source", self.value(), persistent=False)
        self.source: Tensor

    def value(self) -> Tensor:
        """(P,)."""
        return parameters_to_vector(self.trainable).detach()

    def load(self, value: Tensor) -> None:
        """Set the parameters from (P,)."""
        with torch.no_grad():
            for p, part in zip(self.trainable, value.split([p.numel() for p in self.trainable]), strict=True):
                p.copy_(part.view_as(p))

    def embed(self, backbone: Backbone, images: Tensor) -> Embedded | Tensor:
        """Return the images themselves, since norm layers may be anywhere."""
        return images

    @torch.no_grad()
    def raw(self, backbone: Backbone, embedded: Embedded | Tensor) -> Tensor:
        """Features (B, D) under the source's parameters, which remain set afterwards."""
        assert isinstance(embedded, Tensor)
        self.load(self.source)
        return backbone.encode(backbone.embed(embedded))

    def prompted(self, backbone: Backbone, embedded: Embedded | Tensor) -> Tensor:
        """Features (B, D) under the current parameters."""
        assert isinstance(embedded, Tensor)
        return backbone.encode(backbone.embed(embedded))
