"""Restriction of a classifier to some of its classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tta_bench.models.backbones.base import Backbone


def keep_classes(backbone: Backbone, classes: Sequence[int]) -> None:
    """Restrict a backbone's scores to some classes, for data that is known to have only these.

    Only the corresponding rows of the last linear layer are kept, so probabilities are over these classes, and so are
    all quantities that a method derives from them (entropies, pseudo-labels, prototypes). Results on ImageNet-R and
    -A are published over their 200 classes.

    Args:
        backbone: Backbone to modify; afterwards it gives scores (B, len(classes)).
        classes: Labels of the classes to keep; the new label of a class is its index here.

    Raises:
        ValueError: If the scores are not the output of one linear layer.

    Source: ImageNet-R (Hendrycks et al., ICCV 2021), repository hendrycks/imagenet-r.
    """
    linear = [layer for layer in backbone.modules() if isinstance(layer, nn.Linear)]
    heads = [layer for layer in linear if layer.out_features == backbone.num_classes]
    if len(heads) != 1:
        raise ValueError(
            f"the scores of {type(backbone).__name__} do not come from one linear layer, so they cannot be limited to "
            f"{len(classes)} classes: set dataset.classes=imagenet"
        )
    (head,), rows = heads, torch.tensor(classes, device=heads[0].weight.device)
    head.weight = nn.Parameter(head.weight.detach()[rows], requires_grad=head.weight.requires_grad)
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias.detach()[rows], requires_grad=head.bias.requires_grad)
    head.out_features = backbone.num_classes = len(classes)
    backbone.kept_classes = tuple(classes)
