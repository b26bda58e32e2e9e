"""Which parameters a method adapts."""

from __future__ import annotations

from torch import nn

BatchNorm = nn.modules.batchnorm._BatchNorm
NORM_LAYERS = (nn.LayerNorm, nn.GroupNorm, BatchNorm)


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """All batch norm layers inside ``module``."""
    return [m for m in module.modules() if isinstance(m, BatchNorm)]


def norm_layers(module: nn.Module) -> list[nn.Module]:
    """All normalisation layers inside ``module`` that own an affine weight, in order of definition."""
    return [m for m in module.modules() if isinstance(m, NORM_LAYERS) and m.weight is not None]


def adapt_norm_layers(module: nn.Module) -> list[nn.Parameter]:
    """Freeze ``module`` except for the affine parameters of its normalisation layers.

    Batch norm layers are switched to the statistics of the batch, as Tent does; other norms have no such state.

    Returns:
        The trainable parameters.

    Raises:
        ValueError: If there is no normalisation layer to adapt.

    Source: Tent (Wang et al., ICLR 2021), Sec. 3.2.
    """
    module.requires_grad_(False)
    layers = norm_layers(module)
    if not layers:
        raise ValueError(f"{type(module).__name__} has no normalisation layer to adapt; choose another method")
    for layer in layers:
        layer.requires_grad_(True)
        if isinstance(layer, BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = None
    return [p for layer in layers for p in layer.parameters()]
