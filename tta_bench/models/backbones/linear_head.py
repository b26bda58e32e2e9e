"""Backbone without prompts for any classifier that ends in a linear layer, such as torchvision's or your own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tta_bench.models.backbones.base import Backbone

ANY_SIZE = 64  # pixels; large enough for the strides of common networks


class LinearHeadBackbone(Backbone):
    """A network whose scores are the output of its last ``nn.Linear``, whose input is the feature.

    Args:
        network: Maps images (B, 3, H, W) to scores (B, K). It is modified: its last layer moves to ``head``.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.

    Raises:
        ValueError: If the scores are not the output of the last linear layer.
    """

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__(mean, std)
        name = type(network).__name__
        linear = [(key, layer) for key, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        if not linear or not linear[-1][0]:
            raise ValueError(f"{name} does not end in a linear layer behind features")
        self.image_size = getattr(network, "image_size", None)
        place, head = linear[-1]
        size = self.image_size or ANY_SIZE
        images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        outputs: list[Tensor] = []
        hook = head.register_forward_hook(lambda layer, inputs, output: outputs.append(output))
        with torch.no_grad():
            scores = network.eval()(images)
        hook.remove()
        if not outputs or scores.shape != outputs[-1].shape or not torch.equal(scores, outputs[-1]):
            raise ValueError(f"the scores of {name} are not the output of its last linear layer, {place}")
        network.set_submodule(place, nn.Identity())
        self.network: Any = network
        self.head = head
        self.feature_dim, self.num_classes = head.in_features, head.out_features

    def _embed(self, images: Tensor) -> Tensor:
        return images

    def _encode(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        if prompt is not None:
            raise ValueError(f"{type(self.network).__name__} takes no prompts; use a vit_* model")
        features: Tensor = self.network(tokens)
        return features

    def _classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        return logits
