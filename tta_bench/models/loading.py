"""From a name or a local file to a backbone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import timm
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tta_bench.models import shapes_vit as _register_shapes_vit  # noqa: F401  (makes timm know the architecture)
from tta_bench.models.backbone import Backbone
from tta_bench.models.cnn import TimmBackbone
from tta_bench.models.vit import ViTBackbone

PACKAGED = {"shapes_vit": "shapes_vit"}  # name -> stem of its .yaml and .safetensors in this package's weights/
CARD_KEYS = {"architecture", "kwargs", "mean", "std"}


def load_model(
    name: str | None = None,
    *,
    checkpoint: str | Path | None = None,
    config: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Backbone:
    """Build a source model.

    Args:
        name: ``shapes_vit`` (weights in the package), or a timm model by its full tag, for example
            ``vit_base_patch16_224.augreg2_in21k_ft_in1k``. Not needed with ``config``.
        checkpoint: Local weights (.safetensors, or a .pt / .pth / .th state dict). Without it, timm downloads.
        config: A yaml with ``architecture`` (a timm model name), ``kwargs`` (its arguments) and the normalisation
            ``mean`` and ``std``; needs ``checkpoint``.
        mean: Overrides the normalisation mean per channel, for images in [0, 1].
        std: Overrides the normalisation standard deviation per channel.

    Returns:
        The backbone in eval mode, float32, with attributes ``weights_sha256`` and ``preprocess``.

    Raises:
        ValueError: If the name, the yaml or the checkpoint is wrong; the message says what to do.
        FileNotFoundError: If a file does not exist.
    """
    if config is not None:
        if checkpoint is None:
            raise ValueError(f"{config} describes a model without weights: give model.checkpoint too")
        card = _read_card(Path(config))
    elif name in PACKAGED:
        weights = resources.files("tta_bench.models") / "weights"
        card = _read_card(Path(str(weights / f"{PACKAGED[name]}.yaml")))
        checkpoint = checkpoint or Path(str(weights / f"{PACKAGED[name]}.safetensors"))
    elif name is None:
        raise ValueError("no model given: set model.name, or model.checkpoint together with model.config")
    else:
        card = _timm_card(name)
    network = _create(card, pretrained=checkpoint is None)
    if checkpoint is not None:
        _load_weights(network, Path(checkpoint))
    kind = ViTBackbone if isinstance(network, VisionTransformer) else TimmBackbone
    backbone = kind(network, tuple(mean or card["mean"]), tuple(std or card["std"])).eval()
    backbone.weights_sha256 = weights_sha256(network.state_dict())
    return backbone


def _read_card(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no model description at {path}")
    card = OmegaConf.to_container(OmegaConf.load(path))
    if not isinstance(card, dict) or "architecture" not in card:
        raise ValueError(f"{path} must name an architecture, for example 'architecture: vit_tiny_patch16_224'")
    if unknown := set(card) - CARD_KEYS:
        raise ValueError(f"{path} has the unknown key {min(unknown)!r}; known are {', '.join(sorted(CARD_KEYS))}")
    if not timm.is_model(card["architecture"]):
        raise ValueError(
            f"{path}: timm has no architecture {card['architecture']!r}{_did_you_mean(card['architecture'])}"
        )
    return {"kwargs": {}, "mean": (0.0,) * 3, "std": (1.0,) * 3, **card}


def _timm_card(name: str) -> dict[str, Any]:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise ValueError(f"timm has no model {name!r}{_did_you_mean(architecture)}")
    tags = timm.list_pretrained(f"{architecture}.*")
    if name not in tags:
        what = f"{name!r} does not say which weights" if not tag else f"timm has no weights {name!r}"
        raise ValueError(f"{what}; give one of: {', '.join(tags) or 'none (use model.checkpoint with model.config)'}")
    settings = timm.get_pretrained_cfg(name)
    return {"architecture": name, "kwargs": {}, "mean": settings.mean, "std": settings.std}


def _did_you_mean(architecture: str) -> str:
    near = get_close_matches(architecture, [*PACKAGED, *timm.list_models("vit*")], n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _create(card: dict[str, Any], pretrained: bool) -> torch.nn.Module:
    try:
        return timm.create_model(card["architecture"], pretrained=pretrained, **card["kwargs"])
    except TypeError as error:
        raise ValueError(f"the architecture {card['architecture']} refuses its kwargs: {error}") from error
    except OSError as error:
        raise ValueError(
            f"the weights of {card['architecture']} are neither on this machine nor could they be downloaded: "
            "go online once, or give model.checkpoint with model.config"
        ) from error


def _load_weights(model: torch.nn.Module, path: Path) -> None:
    state = _read_state_dict(path)
    expected = model.state_dict()
    problems = [f"missing {k}" for k in expected if k not in state]
    problems += [f"unexpected {k}" for k in state if k not in expected]
    problems += [
        f"{k} has shape {tuple(state[k].shape)} where the model has {tuple(v.shape)}"
        for k, v in expected.items()
        if k in state and state[k].shape != v.shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f"{path} does not fit the model: {'; '.join(problems[:5])}{more}")
    model.load_state_dict(state)


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        loaded = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # a damaged or foreign file makes the readers raise nearly anything
        raise ValueError(f"{path} is not a readable checkpoint of tensors only: save model.state_dict()") from error
    for key in ("state_dict", "model", "net"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError(f"{path} holds no state dict of tensors")
    return {k.removeprefix("module."): v.float() if v.is_floating_point() else v for k, v in loaded.items()}


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of a state dict, whatever its order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
