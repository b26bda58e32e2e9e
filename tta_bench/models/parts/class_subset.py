"""A classifier that chooses among some of its classes only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tta_bench.models.backbones.base import Backbone


def keep_classes(backbone: Backbone, classes: Sequence[int]) -> None:
    """Leave all other classes out of a backbone's scores, for data that is known to have these only.

    The rows of the last linear layer are taken, so probabilities are over these classes, and all that a method
    makes of them (entropies, pseudo-labels, prototypes) too. ImageNet-R and -A are published with their 200 classes.

    Args:
        backbone: Is changed: afterwards it gives scores (B, len(classes)).
        classes: Labels of the classes to keep; the new label of a class is its position here.

    Raises:
        ValueError: If the scores are not those of one linear layer.

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
