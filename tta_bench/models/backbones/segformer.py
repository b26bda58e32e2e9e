"""mmsegmentation's SegFormer as a backbone that scores every pixel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from tta_bench.models.backbones.base import Backbone, Embedded
from tta_bench.models.parallel import gather, share_of
from tta_bench.models.precision import network_pass


class Pyramid(NamedTuple):
    """Output of the encoder for a batch; opaque to methods, which pass it to ``classify``."""

    maps: tuple[Tensor, ...]  # one per stage, (B, C_s, H / 2^(s+2), W / 2^(s+2)), rounded up
    size: tuple[int, int]  # height and width of the images, and so of the scores

    @property
    def features(self) -> Tensor:
        """The last stage's map (B, D, h, w)."""
        return self.maps[-1]

    def detach(self) -> Pyramid:
        """A copy without a graph."""
        return Pyramid(tuple(stage.detach() for stage in self.maps), self.size)


class Sliding(NamedTuple):
    """Sliding windows over large images, as (height, width) in pixels."""

    crop: tuple[int, int]
    stride: tuple[int, int]

    def windows(self, size: tuple[int, int]) -> list[tuple[slice, slice]]:
        """Rows and columns of the windows over an image; the last ones are shifted inwards to stay inside it.

        Source: mmsegmentation, ``EncoderDecoder.slide_inference``.
        """
        rows, columns = (_spans(*axis) for axis in zip(size, self.crop, self.stride, strict=True))
        return [(row, column) for row in rows for column in columns]


def _spans(length: int, crop: int, stride: int) -> list[slice]:
    count = max(length - crop + stride - 1, 0) // stride + 1
    ends = [min(i * stride + crop, length) for i in range(count)]
    return [slice(max(end - crop, 0), end) for end in ends]


class KeyValueAttention(nn.Module):
    """SegFormer's attention to a reduced map, with prompt tokens as additional keys and values.

    Without a prompt it computes the same as mmsegmentation's layer. Queries, keys and values have separate linear
    layers, as in the authors' own code: methods that train everything called ``weight``, or put adapters on linear
    layers, would not handle the single matrix in which torch stores all three.

    Args:
        layer: mmsegmentation's ``EfficientMultiheadAttention``.

    Source: SegFormer (Xie et al., NeurIPS 2021), Eq. 1-2; repository NVlabs/SegFormer.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        packed = layer.attn
        self.heads, self.dropout = packed.num_heads, packed.dropout
        biases = (None,) * 3 if packed.in_proj_bias is None else packed.in_proj_bias.chunk(3)
        self.query, self.key, self.value = map(_linear, packed.in_proj_weight.chunk(3), biases)
        self.proj = _linear(packed.out_proj.weight, packed.out_proj.bias)
        self.reduction = layer.sr if layer.sr_ratio > 1 else None
        self.norm = layer.norm if layer.sr_ratio > 1 else None
        self.drop = nn.Sequential(layer.proj_drop, layer.dropout_layer)

    def forward(self, tokens: Tensor, size: tuple[int, int], prompt: Tensor | None) -> Tensor:
        """Attend from tokens (B, N, C) of a map of ``size`` to the map and to prompt tokens (L, C)."""
        seen = tokens
        if self.reduction is not None and self.norm is not None:
            seen = self.norm(_tokens(self.reduction(_map(tokens, size))))
        if prompt is not None:
            seen = torch.cat([seen, prompt.expand(len(seen), -1, -1)], dim=1)
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.query, tokens), (self.key, seen), (self.value, seen))
        )
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        dropped: Tensor = self.drop(self.proj(out.transpose(1, 2).flatten(2)))
        return dropped


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    assert isinstance(layer, nn.Linear)
    layer.weight.data.copy_(weight)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


def _map(tokens: Tensor, size: tuple[int, int]) -> Tensor:
    return tokens.transpose(1, 2).unflatten(2, size)  # (B, N, C) -> (B, C, h, w)


def _tokens(stage: Tensor) -> Tensor:
    return stage.flatten(2).transpose(1, 2)  # (B, C, h, w) -> (B, N, C)


class Layer(nn.Module):
    """Attention and a feed-forward network with a depth-wise convolution, both residual.

    Args:
        layer: mmsegmentation's ``TransformerEncoderLayer``.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm1, self.norm2, self.ffn = layer.norm1, layer.norm2, layer.ffn
        self.attention = KeyValueAttention(layer.attn)

    def forward(self, tokens: Tensor, size: tuple[int, int], prompt: Tensor | None) -> Tensor:
        """Transform tokens (B, N, C)."""
        tokens = tokens + self.attention(self.norm1(tokens), size, prompt)
        out: Tensor = self.ffn(self.norm2(tokens), size, identity=tokens)
        return out


class Stage(nn.Module):
    """Overlapping patch embedding of a map, several layers, and a norm.

    Args:
        parts: The patch embedding, the layers and the norm of one stage of mmsegmentation's ``MixVisionTransformer``.
    """

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.patch_embed, layers, self.norm = parts
        self.layers = nn.ModuleList(map(Layer, layers))

    def forward(self, x: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Transform a map (B, C, H, W), with prompt tokens (L, C') in every layer, to (B, C', H', W')."""
        tokens, size = self.patch_embed(x)
        for layer in self.layers:
            tokens = layer(tokens, size, prompt)
        return _map(self.norm(tokens), size)


class SegFormerBackbone(Backbone):
    """SegFormer of any size: the features are the last stage's map, and every pixel has scores.

    A prompt is appended to the keys and values of every layer; its tokens (L, D_1 + ... + D_S) are split into those
    of the S stages. Queries and maps keep their size, so convolutions are not affected, but even a prompt of zeros
    receives some attention: no prompt is exactly neutral.

    Only ``forward`` uses sliding windows for large images, each counted as a pass; ``encode`` takes whole images.

    Args:
        encoder: mmsegmentation's ``MixVisionTransformer``; its parts become parts of this module.
        head: mmsegmentation's ``SegformerHead``.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.
        sliding: Windows for ``forward``; None processes every image as a whole.

    Source: SegFormer (Xie et al., NeurIPS 2021). Prompts among keys and values: ours.
    """

    segments = True
    mask_size = 32  # the part of an image behind one position of the last map

    def __init__(
        self,
        encoder: Any,
        head: Any,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        sliding: Sliding | None = None,
    ) -> None:
        super().__init__(mean, std)
        self.stages = nn.ModuleList(map(Stage, encoder.layers))
        self.head, self.sliding, self.mask_dim = head, sliding, len(mean)
        self.widths: list[int] = list(head.in_channels)
        self.feature_dim, self.prompt_dim, self.num_classes = self.widths[-1], sum(self.widths), head.num_classes

    def _embed(self, images: Tensor) -> Tensor:
        return images  # prompts act from the first layer on, and patches cost little

    # The head needs every stage, not only the features.
    @network_pass
    def encode(self, embedded: Embedded, prompt: Tensor | None = None) -> Pyramid:  # type: ignore[override]  # see above
        """Compute the maps of all stages, optionally with prompt tokens (L, prompt_dim)."""
        x, maps = embedded.tokens, []
        prompts = [None] * len(self.stages) if prompt is None else prompt.split(self.widths, dim=1)
        for stage, own in zip(self.stages, prompts, strict=True):
            x = stage(x) if own is None else stage(x, own)  # a stage that a method has wrapped may take no prompt
            maps.append(gather(x, embedded.batch_size))
        self.meter.observe(maps[-1])
        return Pyramid(tuple(maps), (embedded.tokens.shape[2], embedded.tokens.shape[3]))

    @network_pass
    def embed_masked(self, images: Tensor, mask: Tensor, mask_token: Tensor) -> Embedded:
        """Embed images with some squares of 32 pixels painted over, before the overlapping patch embedding.

        Args:
            images: (B, C, H, W) in [0, 1].
            mask: (B, N) bool, one square per position of the last map, row by row.
            mask_token: (C,), their colour after normalisation: zero is the mean.

        Source: ours.
        """
        share, (height, width) = share_of(len(images)), images.shape[-2:]
        squares = mask[share].unflatten(1, (-1, -(-width // self.mask_size)))
        hidden = squares.repeat_interleave(self.mask_size, 1).repeat_interleave(self.mask_size, 2)
        images = self.normalize(images[share])
        colour = mask_token.to(images.dtype)[:, None, None]
        return Embedded(torch.where(hidden[:, None, :height, :width], colour, images), len(mask))

    @network_pass
    def encode_patches(self, embedded: Embedded) -> tuple[Pyramid, Tensor]:  # type: ignore[override]  # as above
        """Compute the maps of all stages, and the tokens of the last one (B, h w, D)."""
        pyramid = self.encode(embedded)
        return pyramid, _tokens(pyramid.features)

    @network_pass
    def classify(self, pyramid: Pyramid) -> Tensor:  # type: ignore[override]  # as above
        """Compute logits (B, K, H, W) at the size of the images from the maps of all stages."""
        logits = self.head(list(pyramid.maps))
        return F.interpolate(logits, pyramid.size, mode="bilinear", align_corners=self.head.align_corners)

    @network_pass
    def features_of(self, pyramid: Pyramid) -> Tensor:  # type: ignore[override]  # as above
        """The last stage's map (B, D, h, w)."""
        return pyramid.features

    def features(self, images: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Compute the last stage's map (B, D, h, w) of images (B, C, H, W) in [0, 1]."""
        return self.encode(self.embed(images), prompt).features

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (B, K, H, W) of images (B, C, H, W) in [0, 1], averaged over the windows at each pixel."""
        if self.sliding is None:
            return self.classify(self.encode(self.embed(images)))
        scores = images.new_zeros(len(images), self.num_classes, *images.shape[2:])
        views = images.new_zeros(images.shape[2:])
        for rows, columns in self.sliding.windows((images.shape[2], images.shape[3])):
            scores[..., rows, columns] += self.classify(self.encode(self.embed(images[..., rows, columns])))
            views[..., rows, columns] += 1
        return scores / views
