"""The tiny ViT and the stream of 14 batches behind the golden traces (see tests/golden/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer

from tta_bench.models.backbones.vit import ViTBackbone

FOLDER = Path(__file__).parents[1] / "golden"


def load_trace(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def golden_backbone(head: dict[str, np.ndarray] | None = None) -> ViTBackbone:
    """The ViT in float64; ``head`` replaces the classifier by the one stored in a ``_sharp_`` trace."""
    vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=64, depth=3, num_heads=4, num_classes=10)
    stored = load_trace("dpcore_trace")
    weights = {k.removeprefix("vit."): torch.from_numpy(v) for k, v in stored.items() if k.startswith("vit.")}
    for key in ("head.weight", "head.bias"):
        if head is not None and key in head:
            weights[key] = torch.from_numpy(head[key])
    vit.double().load_state_dict(weights)
    return ViTBackbone(vit, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)).double().eval()


def golden_batches() -> list[torch.Tensor]:
    """14 batches of shape (16, 3, 32, 32), float64 in [0, 1]."""
    images = load_trace("dpcore_trace")["images"]
    return [torch.from_numpy(batch).double() / 255 for batch in images]
