"""Selection of the parameters that a method adapts."""

from __future__ import annotations

import re
from typing import Literal

from torch import nn

BatchNorm = nn.modules.batchnorm._BatchNorm
NORM_LAYERS = (nn.LayerNorm, nn.GroupNorm, BatchNorm)


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """All batch norm layers inside ``module``."""
    return [m for m in module.modules() if isinstance(m, BatchNorm)]


def norm_layers(module: nn.Module, part: Literal["all", "early"] = "all") -> list[nn.Module]:
    """Normalisation layers inside ``module`` that have an affine weight, in order of definition.

    Args:
        module: A network, or a backbone around one.
        part: ``all``, or ``early``: without the last quarter of a transformer's blocks (9 to 11 of 12) and its final
            norm, without ``layer4`` of a residual network, or without the last of a SegFormer's four stages and its
            head (ours). SAR and DeYO adapt these, since late layers are sensitive.

    Source: SAR (Niu et al., ICLR 2023), Sec. 4 and repository mr-eggplant/SAR.
    """
    named = {name: m for name, m in module.named_modules() if isinstance(m, NORM_LAYERS) and m.weight is not None}
    last_stage, last_block = (
        max(_index(name, of) for name, _ in module.named_modules()) for of in ("stages", "blocks")
    )
    first_late = last_block + 1 - (last_block + 1) // 4

    def is_late(name: str) -> bool:
        if segments(module):
            return _index(name, "stages") in (last_stage, -1)
        if (block := _index(name, "blocks")) >= 0:
            return block >= first_late
        return bool(re.search(r"(?:^|\.)(layer4\.|(norm|fc_norm)$)", name))

    return [layer for name, layer in named.items() if part == "all" or not is_late(name)]


def _index(name: str, of: str) -> int:
    """Index of the stage or block that contains a layer; -1 if there is none."""
    found = re.search(rf"(?:^|\.){of}\.(\d+)", name)
    return int(found[1]) if found else -1


def segments(module: nn.Module) -> bool:
    """Whether ``module`` is a segmentation backbone."""
    return bool(getattr(module, "segments", False))


def use_batch_statistics(module: nn.Module) -> None:
    """Let batch norm layers normalise with the statistics of the batch, discarding those of the source.

    Segmentation networks keep the source statistics: they see one image at a time, and the published configurations
    for SegFormer, which has a single batch norm in its head, keep them.

    Source: Tent (Wang et al., ICLR 2021), Sec. 3.2.
    """
    for layer in [] if segments(module) else batch_norms(module):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = None


def adapt_norm_layers(module: nn.Module, part: Literal["all", "early"] = "all") -> list[nn.Parameter]:
    """Freeze ``module`` except for the affine parameters of its normalisation layers.

    From now on, batch norm layers use the statistics of the batch, except in segmentation networks; other norms have
    no running statistics.

    Args:
        module: A network, or a backbone around one.
        part: Which normalisation layers; see ``norm_layers``.

    Returns:
        The trainable parameters.

    Raises:
        ValueError: If there are no normalisation layers to adapt.

    Source: Tent (Wang et al., ICLR 2021), Sec. 3.2.
    """
    module.requires_grad_(False)
    layers = norm_layers(module, part)
    if not layers:
        raise ValueError(f"{type(module).__name__} has no normalisation layer to adapt; choose another method")
    use_batch_statistics(module)
    return _trainable([p for layer in layers for p in layer.parameters(recurse=False)])


def adapt_weights_and_biases(module: nn.Module) -> list[nn.Parameter]:
    """Freeze ``module`` except for all parameters named ``weight`` or ``bias``; [CLS] and positions stay frozen.

    From now on, batch norm layers use the statistics of the batch, except in segmentation networks.

    Returns:
        The trainable parameters.

    Source: CoTTA (Wang et al., CVPR 2022), repository qinenergy/cotta.
    """
    module.requires_grad_(False)
    use_batch_statistics(module)
    leaves = [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "bias")]
    return _trainable(leaves)


def _trainable(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    for p in parameters:
        p.requires_grad_(True)
    return parameters
