"""Backbone without prompts for any other timm classifier, mostly residual networks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tta_bench.models.backbones.base import Backbone


class TimmBackbone(Backbone):
    """A timm network with a linear classifier behind a pooled feature, e.g. ``resnet50`` or ``resnet50_gn``.

    Args:
        network: The network.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.

    Raises:
        ValueError: If ``network`` is not a timm classifier with a linear head.
    """

    def __init__(self, network: Any, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        if not hasattr(network, "forward_head") or not isinstance(network.get_classifier(), nn.Linear):
            raise ValueError(f"{type(network).__name__} has no linear classifier behind a pooled feature")
        super().__init__(mean, std)
        self.network: Any = network
        self.feature_dim = (
            network.num_features if not hasattr(network, "head_hidden_size") else network.head_hidden_size
        )
        self.num_classes = network.num_classes

    def _embed(self, images: Tensor) -> Tensor:
        return images

    def _encode(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        if prompt is not None:
            raise ValueError(f"{type(self.network).__name__} takes no prompts; use a vit_* model")
        features: Tensor = self.network.forward_head(self.network.forward_features(tokens), pre_logits=True)
        return features

    def _classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.network.get_classifier()(features)
        return logits
