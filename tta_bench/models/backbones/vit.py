"""timm vision transformers as backbones."""

from __future__ import annotations

import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tta_bench.models.backbones.base import Backbone, Embedded
from tta_bench.models.parallel import gather, share_of
from tta_bench.models.precision import network_pass


class ViTBackbone(Backbone):
    """A timm ``VisionTransformer`` of any size that takes prompt tokens.

    The feature is the input of the head's linear layer: the [CLS] token after the final norm, or the pooled feature
    for models without one. Prompts are inserted between the prefix ([CLS], registers) and the patches, after the
    position embedding, so they have no position (as in the released DPCore).

    Args:
        vit: The network.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.

    Raises:
        ValueError: If ``vit`` is not a timm ``VisionTransformer``, or takes images that are not square.
    """

    def __init__(self, vit: VisionTransformer, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        if not isinstance(vit, VisionTransformer):
            raise ValueError(f"expected a timm VisionTransformer, got {type(vit).__name__}; use a vit_* model")
        height, width = vit.patch_embed.img_size
        if height != width:
            raise ValueError(f"the network takes images of {height}x{width} pixels, but only square ones are supported")
        super().__init__(mean, std)
        self.vit = vit
        self.feature_dim = self.prompt_dim = vit.embed_dim
        self.num_classes = vit.num_classes
        self.image_size = vit.patch_embed.img_size[0]
        self.patch_size = vit.patch_embed.img_size[0] // vit.patch_embed.grid_size[0]  # hybrids too: their stride
        self.mask_size, self.mask_dim = self.patch_size, vit.embed_dim

    def _embed(self, images: Tensor) -> Tensor:
        return self._positioned(self.vit.patch_embed(images))  # (B, prefix + N, D)

    def _positioned(self, patches: Tensor) -> Tensor:
        return self.vit.patch_drop(self.vit._pos_embed(patches))

    def _encode(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        vit = self.vit
        if prompt is None:
            return self._pool(vit.norm(vit.blocks(vit.norm_pre(tokens))))
        tokens = vit.norm(vit.blocks(vit.norm_pre(self._insert(tokens, prompt))))
        return self._pool(self._remove(tokens, len(prompt)))

    def _insert(self, tokens: Tensor, prompt: Tensor) -> Tensor:
        start = self.vit.num_prefix_tokens
        return torch.cat(
            [tokens[:, :start], prompt.to(tokens.dtype).expand(len(tokens), -1, -1), tokens[:, start:]], dim=1
        )

    def _remove(self, tokens: Tensor, length: int) -> Tensor:  # a pooling head averages patches, not prompts
        start = self.vit.num_prefix_tokens
        return torch.cat([tokens[:, :start], tokens[:, start + length :]], dim=1)

    def _pool(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.vit.fc_norm(self.vit.pool(tokens))
        return features

    @network_pass
    def embed_masked(self, images: Tensor, mask: Tensor, mask_token: Tensor) -> Embedded:
        """Embed images with some patches masked, as in masked autoencoders.

        Args:
            images: (B, C, H, W) in [0, 1].
            mask: (B, N) bool, True where a patch is replaced before positions are added.
            mask_token: (D,), the replacement.
        """
        share = share_of(len(images))
        patches = self.vit.patch_embed(self.normalize(images[share]))
        patches = torch.where(mask[share][..., None], mask_token.to(patches.dtype), patches)
        return Embedded(self._positioned(patches), len(images))

    @network_pass
    def encode_patches(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Compute features (B, D) and the patch tokens after the final norm (B, N, D)."""
        tokens = gather(self.vit.norm(self.vit.blocks(self.vit.norm_pre(embedded.tokens))), embedded.batch_size)
        features = self._pool(tokens)
        self.meter.observe(features)
        return features, tokens[:, self.vit.num_prefix_tokens :]

    @network_pass
    def encode_layers(self, embedded: Embedded, prompt: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute features (B, D) and all layers (B, depth, D), optionally with prompt tokens (L, D).

        The layers are the first tokens after each block, normalised by the following norm.

        Source: FOA (Niu et al., ICML 2024), Sec. 3.1, and repository mr-eggplant/FOA.
        """
        vit, layers = self.vit, []
        tokens = vit.norm_pre(embedded.tokens if prompt is None else self._insert(embedded.tokens, prompt))
        norms = [*(block.norm1 for block in vit.blocks[1:]), vit.norm]
        for block, norm in zip(vit.blocks, norms, strict=True):
            tokens = block(tokens)
            if norm is not vit.norm:
                layers.append(norm(tokens[:, 0]))
        tokens = vit.norm(tokens)
        layers.append(tokens[:, 0])
        features = self._pool(tokens if prompt is None else self._remove(tokens, len(prompt)))
        features = gather(features, embedded.batch_size)
        self.meter.observe(features)
        return features, gather(torch.stack(layers, dim=1), embedded.batch_size)

    @network_pass
    def encode_stages(self, embedded: Embedded, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features with separate prompts in each of S stages of equally many blocks.

        Args:
            embedded: B embedded images.
            prompts: (S, L, D). At the end of a stage its prompts are replaced by those of the next stage.

        Returns:
            Features (B, D) and the prompts at the end of each stage (B, S, L, D).

        Raises:
            ValueError: If S does not divide the number of blocks.

        Source: DePT (Gao et al., 2022), Sec. 3.1.
        """
        vit, start, length = self.vit, self.vit.num_prefix_tokens, prompts.shape[1]
        if len(vit.blocks) % len(prompts):
            raise ValueError(f"{len(vit.blocks)} blocks cannot be split into {len(prompts)} equal stages")
        size, tokens, outputs = len(vit.blocks) // len(prompts), vit.norm_pre(embedded.tokens), []
        for stage, prompt in enumerate(prompts):
            tokens = self._insert(tokens, prompt)
            for block in vit.blocks[stage * size : (stage + 1) * size]:
                tokens = block(tokens)
            outputs.append(tokens[:, start : start + length])
            tokens = self._remove(tokens, length)
        features = gather(self._pool(vit.norm(tokens)), embedded.batch_size)
        self.meter.observe(features)
        return features, gather(torch.stack(outputs, dim=1), embedded.batch_size)

    def _classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.vit.head(self.vit.head_drop(features))
        return logits


class DistilledViTBackbone(ViTBackbone):
    """A DeiT with a distillation token: the scores are the mean of two heads, one for each of the two tokens.

    The feature is both tokens after the final norm, [CLS] first, so that the scores are linear in it, as in any ViT.

    Args:
        vit: timm's ``VisionTransformerDistilled``.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.

    Source: Touvron et al., "Training data-efficient image transformers", ICML 2021, Sec. 4.
    """

    def __init__(self, vit: VisionTransformerDistilled, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__(vit, mean, std)
        self.feature_dim = 2 * vit.embed_dim

    @property
    def patch_dim(self) -> int:
        """Width of a patch token: half that of a feature, which has two tokens."""
        return int(self.vit.embed_dim)

    def _pool(self, tokens: Tensor) -> Tensor:
        return tokens[:, :2].flatten(1)

    def _classify(self, features: Tensor) -> Tensor:
        cls, distilled = self.vit.head_drop(features).chunk(2, dim=1)
        logits: Tensor = (self.vit.head(cls) + self.vit.head_dist(distilled)) / 2
        return logits
