"""Tiny source models and toy domains, on which a method can be tried in milliseconds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from timm.layers import GroupNorm
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.models.backbones.segformer import Pyramid, SegFormerBackbone
from tta_bench.models.backbones.timm_cnn import TimmBackbone
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.loading.segformer import segformer

NUM_CLASSES = 4


class ToyImages:
    """Clean 16x16 images that can be learned: one prototype per class, and noise."""

    def __init__(self, num_images: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.labels = np.arange(num_images) % NUM_CLASSES
        prototypes = np.random.default_rng(0).uniform(60, 200, (NUM_CLASSES, 16, 16, 3))
        self.pixels = prototypes[self.labels] + rng.normal(0, 20, (num_images, 16, 16, 3))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.pixels[index].clip(0, 255).astype(np.uint8)

    def describe(self) -> str:
        """Short description."""
        return f"toy ({len(self)} images)"


class ToyDomains:
    """Three domains of toy images: darker, washed out, inverted."""

    name = "toy"
    domains = ("dark", "pale", "inverted")

    def __init__(self, num_images: int = 17) -> None:
        self.clean = ToyImages(num_images, seed=1)

    def labels(self, domain: str) -> np.ndarray:
        """Labels (N,) int64."""
        return self.clean.labels

    def load(self, domain: str, index: int) -> np.ndarray:
        """Image (16, 16, 3) uint8."""
        pixels = self.clean[index].astype(float)
        changed = {"dark": pixels * 0.3, "pale": 180 + pixels * 0.3, "inverted": 255 - pixels}[domain]
        return changed.clip(0, 255).astype(np.uint8)

    def source_images(self) -> ToyImages:
        """64 labelled clean images."""
        return ToyImages(64, seed=2)

    def describe(self) -> dict[str, Any]:
        """Facts about the domains."""
        return {"clean": self.clean.describe()}


def toy_backbone(seed: int = 0, num_classes: int = NUM_CLASSES) -> ViTBackbone:
    """Create a vision transformer with 30,000 random weights for 16x16 images and, by default, 4 classes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vit = VisionTransformer(
            img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=num_classes
        )  # fmt: skip
        torch.nn.init.normal_(vit.head.weight, std=0.5)  # timm's head starts at zero, without a prediction to adapt
    return ViTBackbone(vit, (0.5,) * 3, (0.25,) * 3).eval()


def toy_cnn(norm: str = "batch") -> TimmBackbone:
    """Create a residual network with random weights for 16x16 images and 4 classes; ``norm`` is batch or group."""
    layer = {"batch": torch.nn.BatchNorm2d, "group": partial(GroupNorm, num_groups=4)}[norm]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ResNet(
            BasicBlock,
            (1, 1, 1, 1),
            num_classes=NUM_CLASSES,
            channels=(8, 8, 16, 16),
            stem_width=8,
            output_stride=8,
            norm_layer=layer,
        )
        torch.nn.init.normal_(net.fc.weight, std=0.5)
    return TimmBackbone(net, (0.5,) * 3, (0.25,) * 3).eval()


class _Enlarged(SegFormerBackbone):
    """Enlarges images four times, so that the last map of a toy image has four positions."""

    def _embed(self, images: Tensor) -> Tensor:
        return images.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)

    def classify(self, pyramid: Pyramid) -> Tensor:  # type: ignore[override]  # as in its base
        return super().classify(pyramid)[..., ::4, ::4]


def toy_segformer() -> SegFormerBackbone:
    """Create a SegFormer with random weights for 16x16 images and 4 classes; requires mmsegmentation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = segformer(NUM_CLASSES, embed_dims=8, num_layers=(1, 1, 1, 1), channels=12)
        torch.nn.init.normal_(net.decode_head.conv_seg.weight, std=3.0)  # confident at some pixels
    return _Enlarged(net.backbone, net.decode_head, (0.5,) * 3, (0.25,) * 3).eval()


def toy_data(batch_size: int = 8, setting: str = "cdc") -> StreamDataModule:
    """Create a stream over the toy domains, with 17 images each, so that batches of 8 end with a single image."""
    domains = ToyDomains()
    return StreamDataModule(domains, schedule_for(domains, setting, batch_size=batch_size))


def batches(count: int, batch_size: int = 8, seed: int = 0) -> list[Tensor]:
    """Create batches of toy images (B, 3, 16, 16) in [0, 1], with alternating domains."""
    domains, rng = ToyDomains(), np.random.default_rng(seed)
    chosen = []
    for t in range(count):
        rows = rng.choice(len(domains.clean), batch_size, replace=batch_size > len(domains.clean))
        images = np.stack([domains.load(domains.domains[t % 3], int(i)) for i in rows])
        chosen.append(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)
    return chosen
