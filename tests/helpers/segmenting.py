"""A tiny segmentation network and tiny domains with label maps, for tests without mmsegmentation."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from tta_bench.models.backbones.base import Backbone

# The package is an extra, which `make seg` installs; CI does.
needs_mmseg = pytest.mark.skipif(find_spec("mmseg") is None, reason="mmsegmentation is missing: tta_bench[seg]")

CLASSES = ("road", "sky", "car")


class Pixels(Backbone):
    """Scores (B, 3, H, W) that are a fixed mixture of the pixels' colours."""

    segments = True
    num_classes = feature_dim = len(CLASSES)

    def __init__(self):
        super().__init__((0.5,) * 3, (0.25,) * 3)
        self.norm, self.mix = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1, bias=False)
        weights = torch.eye(3) + 0.6 * torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
        self.mix.weight.data.copy_(weights[..., None, None])
        self.eval()

    def _embed(self, images):
        return images

    def _encode(self, tokens, prompt):
        return self.mix(self.norm(tokens))

    def classify(self, features):
        return features


class PixelImages:
    """Images (4, 6) whose colours mostly indicate the class; label maps have twice that size, and ignored pixels."""

    def __init__(self, num_images, seed, uneven=False):
        self.labels, self.seed, self.uneven = np.zeros(num_images, dtype=np.int64), seed, uneven

    def __len__(self):
        return len(self.labels)

    def size(self, index):
        return (6, 6) if self.uneven and index % 2 else (4, 6)

    def __getitem__(self, index):
        rng = np.random.default_rng([self.seed, index])
        return rng.integers(0, 256, (*self.size(index), 3)).astype(np.uint8)

    def label_map(self, index):
        labels = self[index].argmax(-1).astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1)
        labels[np.random.default_rng([self.seed, index, 1]).random(labels.shape) < 0.1] = 255
        return labels

    def describe(self):
        return f"pixels ({len(self)} images)"


class PixelDomains:
    """Two domains of five images."""

    name, domains, classes = "pixels", ("fog", "snow"), CLASSES

    def __init__(self, uneven=False):
        self.images = {name: PixelImages(5, seed, uneven) for seed, name in enumerate(self.domains)}

    def labels(self, domain):
        return self.images[domain].labels

    def load(self, domain, index):
        return self.images[domain][index]

    def label_map(self, domain, index):
        return self.images[domain].label_map(index)

    def source_images(self):
        return PixelImages(6, 7)

    def describe(self):
        return {"classes": list(self.classes)}
