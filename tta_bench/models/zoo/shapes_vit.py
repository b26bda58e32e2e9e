"""The architecture for shapes_c: a small timm ViT whose patch embedding is a short convolutional stem."""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.layers import HybridEmbed
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer
from torch import nn

STEM_WIDTHS = (32, 64, 96, 128)  # each stage halves the resolution: 64x64 pixels become 4x4 tokens


def _stem() -> nn.Sequential:
    """Convolutions with He initialisation; with torch's default, training hardly leaves its first plateau."""
    layers: list[nn.Module] = []
    for width_in, width in zip((3, *STEM_WIDTHS), STEM_WIDTHS, strict=False):
        layer = nn.Conv2d(width_in, width, kernel_size=3, stride=2, padding=1)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.GroupNorm(1, width), nn.GELU()]
    return nn.Sequential(*layers[:-1])


@register_model
def shapes_vit(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT for 64x64 images: 16 tokens of width 128, 4 blocks, 4 heads; about 1 million parameters.

    A convolutional stem learns shapes in minutes on a CPU where a linear patch embedding needs hours, and it is in
    the part of the network that is computed only once per batch while a prompt is learned.

    Args:
        pretrained: Must be False: the weights are loaded by ``load_model``.
        kwargs: Further arguments of ``VisionTransformer``.
    """
    if pretrained:
        raise ValueError("use tta_bench.load_model('shapes_vit'): its weights are in the package")
    for key in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        kwargs.pop(key, None)
    stem = _stem()
    initial = {key: value.clone() for key, value in stem.state_dict().items()}
    embed = partial(HybridEmbed, backbone=stem, proj=False)
    settings = {"img_size": 64, "patch_size": 1, "num_classes": 10, "embed_dim": STEM_WIDTHS[-1], "depth": 4}
    vit = VisionTransformer(**{**settings, "num_heads": 4, "embed_layer": embed, **kwargs})
    stem.load_state_dict(initial)  # undo the initialisation by the transformer
    return vit
