"""timm vision transformers as backbones."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tta_bench.models.backbone import Backbone


class ViTBackbone(Backbone):
    """A timm ``VisionTransformer`` of any size that takes prompt tokens.

    The feature is what the head's linear layer sees: the [CLS] token after the final norm, or the pooled
    feature for models without one. Prompts stand between the prefix ([CLS], registers) and the patches, after
    the position embedding, so they carry no position (as the released DPCore does).

    Args:
        vit: The network.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.

    Raises:
        ValueError: If ``vit`` is not a timm ``VisionTransformer``.
    """

    def __init__(self, vit: VisionTransformer, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        if not isinstance(vit, VisionTransformer):
            raise ValueError(f"expected a timm VisionTransformer, got {type(vit).__name__}; use a vit_* model")
        super().__init__(mean, std)
        self.vit = vit
        self.feature_dim = self.prompt_dim = vit.embed_dim
        self.num_classes = vit.num_classes
        self.patch_size = vit.patch_embed.img_size[0] // vit.patch_embed.grid_size[0]  # hybrids too: their stride

    def _embed(self, images: Tensor) -> Tensor:
        vit = self.vit
        return vit.patch_drop(vit._pos_embed(vit.patch_embed(images)))  # (B, prefix + N, D)

    def _encode(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        vit, start = self.vit, self.vit.num_prefix_tokens
        if prompt is not None:
            prompt = prompt.expand(len(tokens), -1, -1)  # (B, L, D)
            tokens = torch.cat([tokens[:, :start], prompt, tokens[:, start:]], dim=1)
        tokens = vit.norm(vit.blocks(vit.norm_pre(tokens)))
        if prompt is not None:  # a pooling head averages patches; prompts are not patches
            tokens = torch.cat([tokens[:, :start], tokens[:, start + prompt.shape[1] :]], dim=1)
        features: Tensor = vit.fc_norm(vit.pool(tokens))
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Features (B, D) -> logits (B, K)."""
        logits: Tensor = self.vit.head(self.vit.head_drop(features))
        return logits
