"""Loads a backbone from a name or a local file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from omegaconf import OmegaConf
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tta_bench.files import existing
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.linear_head import LinearHeadBackbone
from tta_bench.models.backbones.timm_cnn import TimmBackbone
from tta_bench.models.backbones.vit import DistilledViTBackbone, ViTBackbone
from tta_bench.models.compilation import Compilation, Mode
from tta_bench.models.loading.checkpoint import Origin, load_weights
from tta_bench.models.loading.factories import call_factory, robustbench_card, torchvision_card
from tta_bench.models.preprocess import Preprocess, Profile, check_normalisation, profile_of
from tta_bench.models.zoo import shapes_vit as _register_shapes_vit  # noqa: F401  (registers it with timm)
from tta_bench.suggestions import did_you_mean

PACKAGED = ("scenes_vit", "shapes_vit")  # each with a .yaml and a .safetensors in this package's weights/
HUB = ("hf-hub:", "hf_hub:", "local-dir:")
CARD_KEYS = {"architecture", "kwargs", "mean", "std"}


def load_model(
    name: str | None = None,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_key: str | None = None,
    config: str | Path | None = None,
    preprocess: Profile = "timm",
    source_preprocess: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    compile: Mode = "off",
) -> Backbone:
    """Load a source model.

    Args:
        name: ``scenes_vit`` or ``shapes_vit`` (weights in the package); a timm model by its full tag, for example
            ``vit_base_patch16_224.augreg2_in21k_ft_in1k``; ``hf-hub:<owner>/<model>``, a timm model on the Hugging Face
            Hub, or ``local-dir:<folder>`` as timm saves one; ``torchvision/resnet50`` and the like, or
            ``package.module:function``, whose code is run, with ``checkpoint``;
            or, if that package is installed, ``robustbench/<data set>/<threat>/<model>``. Not needed with ``config``.
        checkpoint: Local weights: .safetensors, a .pt / .pth / .th state dict, or, for a timm vision transformer, the
            .npz of its authors. Without it, timm downloads.
        checkpoint_key: Key of the state dict in the checkpoint, for example ``state_dict``; dotted if nested. None
            loads one that fits, preferring averaged weights (``state_dict_ema``, ``model_ema``).
        config: A yaml with ``architecture`` (a timm model name, or ``package.module:function``, whose code is run),
            ``kwargs`` (its arguments) and the normalisation ``mean`` and ``std``; requires ``checkpoint``.
        preprocess: ``timm``: the normalisation of the checkpoint. ``native``: none, values in [0, 1]. ``paper``: as
            in the released code of ViDA and DPCore, none and, for a network of 224 pixels, resizing to 256 and a
            centre crop of 224.
        source_preprocess: The same for the source images that a method is fitted on; None uses ``preprocess``. The
            released DPCore uses ``timm`` there and ``paper`` for the stream.
        mean: Overrides the normalisation mean per channel, for images in [0, 1]; requires ``std``.
        std: Overrides the normalisation standard deviation per channel; requires ``mean``.
        compile: Mode of ``torch.compile`` for the passes of the network during a stream: ``default``,
            ``reduce-overhead`` (CUDA graphs) or ``max-autotune``.

    Returns:
        The backbone in eval mode, float32, with attributes ``weights_sha256``, ``weights_origin`` and ``preprocess``.

    Raises:
        ValueError: If the name, the yaml or the checkpoint is wrong; the message says what to do.
        FileNotFoundError: If a file does not exist.
    """
    compilation = Compilation(compile)
    card, network, origin = load_network(name, checkpoint, config, checkpoint_key)
    sha256 = weights_sha256(network.state_dict())
    own = profile_of(preprocess, card["mean"], card["std"], input_size(network, card))
    if mean is not None or std is not None:
        own = Preprocess("own", *check_normalisation(mean, std), own.resize)
    backbone = wrap(network, own).eval()
    backbone.weights_sha256, backbone.preprocess = sha256, own
    backbone.weights_origin = None if origin is None else origin._asdict()
    backbone.compilation = compilation
    if source_preprocess is not None:
        other = profile_of(source_preprocess, card["mean"], card["std"], input_size(network, card))
        backbone.source_preprocess = None if other == own else other
    return backbone


def load_network(
    name: str | None,
    checkpoint: str | Path | None,
    config: str | Path | None,
    checkpoint_key: str | None = None,
) -> tuple[dict[str, Any], torch.nn.Module, Origin | None]:
    """Load a network as its library builds it; arguments and errors are those of ``load_model``.

    Returns:
        The description of the network, as in a model yaml; the network in eval mode; and where in the checkpoint its
        weights were found, None if they were downloaded or are an .npz.
    """
    if config is not None:
        if checkpoint is None:
            raise ValueError(f"{config} describes a model without weights: give model.checkpoint too")
        card = _read_card(Path(config))
    elif name in PACKAGED:
        folder = resources.files("tta_bench.models") / "weights"
        card = _read_card(Path(str(folder / f"{name}.yaml")))
        checkpoint = checkpoint or Path(str(folder / f"{name}.safetensors"))
    elif name is not None and name.startswith(HUB):
        if checkpoint is not None:
            raise ValueError(f"{name} comes with its weights: leave model.checkpoint out")
        return *_from_hub(name), None
    elif name is None:
        raise ValueError("no model given: set model.name, or model.checkpoint together with model.config")
    else:
        card = _named_card(name, checkpoint)
    weights = None if checkpoint is None else existing("model.checkpoint", checkpoint, "file")
    network, origin = _network(card, weights, checkpoint_key)
    return card, network.eval(), origin


def wrap(network: torch.nn.Module, preprocess: Preprocess) -> Backbone:
    """Wrap a network in a backbone that returns the network's own scores.

    Args:
        network: A classifier in eval mode, from timm or with a linear layer at its end; takes images (B, 3, H, W).
        preprocess: How images in [0, 1] are resized and normalised.

    Raises:
        ValueError: If the network does more than pool its features and score them with a linear layer.
    """
    values = preprocess.mean, preprocess.std
    if not isinstance(network, VisionTransformer) and not hasattr(network, "forward_head"):
        return LinearHeadBackbone(network, *values)  # it checks the scores itself
    backbone: Backbone
    if isinstance(network, VisionTransformerDistilled):
        backbone = DistilledViTBackbone(network, *values)
    elif isinstance(network, VisionTransformer):
        backbone = ViTBackbone(network, *values)
    else:
        backbone = TimmBackbone(network, *values)
    images = torch.randn(1, 3, *_image_shape(network), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own, ours = network(images), backbone.classify(backbone._encode(backbone._embed(images), None))
    if not isinstance(own, Tensor) or own.shape != ours.shape or (own - ours).abs().max() > 1e-3 * own.abs().max():
        raise ValueError(
            f"{type(network).__name__} does more than pool its features and score them with one linear layer, so its "
            "scores would be wrong here: choose another architecture"
        )
    return backbone


def _image_shape(network: torch.nn.Module) -> tuple[int, int]:
    """Height and width of a timm network's input."""
    known: Any = network
    fixed = getattr(getattr(network, "patch_embed", None), "img_size", None)
    height, width = fixed or known.pretrained_cfg["input_size"][1:]
    return int(height), int(width)


def input_size(network: torch.nn.Module, card: Mapping[str, Any]) -> int | None:
    """Side of the images that the weights were trained on; None if the description does not say."""
    if isinstance(network, VisionTransformer):
        return int(network.patch_embed.img_size[0])
    return card.get("image_size")


def _from_hub(name: str) -> tuple[dict[str, Any], torch.nn.Module]:
    """A network with a configuration and weights of its own; timm reads both."""
    scheme, _, place = name.partition(":")
    if scheme == "local-dir" and not (Path(place) / "config.json").is_file():
        raise FileNotFoundError(
            f"model.name={name} must be a folder as timm saves one, and {place}/config.json is missing"
        )
    try:
        network: Any = _create({"architecture": name, "kwargs": {}}, True)
    except (KeyError, RuntimeError, ValueError, AssertionError) as error:  # a configuration that is not of timm
        if isinstance(error.__cause__, OSError):  # nothing was downloaded, and the message says so
            raise
        why = str(error).splitlines()[0] if str(error) else repr(error)
        raise ValueError(f"timm cannot load {name}: {why}") from error
    told = network.pretrained_cfg
    card = {"architecture": name, "kwargs": {}, "mean": tuple(told["mean"]), "std": tuple(told["std"])}
    return {**card, "image_size": told["input_size"][-1]}, network.eval()


def _named_card(name: str, checkpoint: str | Path | None) -> dict[str, Any]:
    library, _, rest = name.partition("/")
    if library == "torchvision":
        if checkpoint is None:
            raise ValueError(f"{name} is loaded from a file of yours: give model.checkpoint")
        return torchvision_card(rest)
    if library == "robustbench":
        if checkpoint is not None:
            raise ValueError(f"{name} comes with its weights: leave model.checkpoint out")
        return {**_UNNORMALISED, **robustbench_card(rest)}
    if ":" in name:
        if checkpoint is None:
            raise ValueError(f"{name} makes a network without weights: give model.checkpoint")
        return {**_UNNORMALISED, "architecture": name}
    return _timm_card(name)


_UNNORMALISED = {"kwargs": {}, "mean": (0.0,) * 3, "std": (1.0,) * 3}


def _read_card(path: Path) -> dict[str, Any]:
    card = OmegaConf.to_container(OmegaConf.load(existing("model.config", path, "file")))
    if not isinstance(card, dict) or "architecture" not in card:
        raise ValueError(f"{path} must name an architecture, for example 'architecture: vit_tiny_patch16_224'")
    if unknown := set(card) - CARD_KEYS:
        raise ValueError(f"{path} has the unknown key {min(unknown)!r}; known are {', '.join(sorted(CARD_KEYS))}")
    if ":" not in card["architecture"] and not timm.is_model(card["architecture"]):
        raise ValueError(
            f"{path}: timm has no architecture {card['architecture']!r}{_near_architecture(card['architecture'])}"
        )
    if "mean" in card or "std" in card:
        try:
            card["mean"], card["std"] = check_normalisation(card.get("mean"), card.get("std"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return {**_UNNORMALISED, **card}


def _timm_card(name: str) -> dict[str, Any]:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise ValueError(f"timm has no model {name!r}{_near_architecture(architecture)}")
    tags = timm.list_pretrained(f"{architecture}.*")
    if name not in tags:
        what = f"{name!r} does not say which weights" if not tag else f"timm has no weights {name!r}"
        raise ValueError(f"{what}; use one of: {', '.join(tags) or 'none (use model.checkpoint with model.config)'}")
    settings = timm.get_pretrained_cfg(name)
    size = settings.input_size[-1]
    return {"architecture": name, "kwargs": {}, "mean": settings.mean, "std": settings.std, "image_size": size}


def _near_architecture(architecture: str) -> str:
    return did_you_mean(architecture, (), more=[*PACKAGED, *timm.list_models("vit*")])


def _network(
    card: dict[str, Any], checkpoint: Path | None, checkpoint_key: str | None
) -> tuple[torch.nn.Module, Origin | None]:
    """Build the network with its weights, and say where in a checkpoint they were found."""
    of_timm = ":" not in card["architecture"]
    if of_timm:
        network = _create(card, pretrained=checkpoint is None)
    else:
        network = call_factory(card["architecture"], card["kwargs"])
    if checkpoint_key is not None and (checkpoint is None or checkpoint.suffix == ".npz"):
        raise ValueError(
            f"model.checkpoint_key={checkpoint_key} selects a state dict of a file, but no file is given: "
            "leave it out, or set model.checkpoint"
        )
    if checkpoint is None:
        return network, None
    if checkpoint.suffix == ".npz":
        _load_npz(network, checkpoint)
        return network, None
    convert = partial(_as_timm_would, card, network) if of_timm else None
    return network, load_weights(network, checkpoint, checkpoint_key, convert)


def _as_timm_would(card: dict[str, Any], network: Any, state: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Convert weights from their authors' names to timm's, as timm does; None if they do not fit."""
    overlay = {"state_dict": state, "num_classes": network.num_classes}  # or the classifier would be left out
    try:
        converted: torch.nn.Module = timm.create_model(
            card["architecture"], pretrained=True, pretrained_cfg_overlay=overlay, **card["kwargs"]
        )
    except Exception:  # its conversions raise nearly anything for files of another kind
        return None
    return converted.state_dict()


def _load_npz(model: torch.nn.Module, path: Path) -> None:
    """Load the .npz in which the authors of vision transformers publish them; no weights may be missing."""
    load: Any = getattr(model, "load_pretrained", None)
    if load is None:
        raise ValueError(f"timm cannot read a .npz for {type(model).__name__}: give a .safetensors or .pth file")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    try:
        load(str(path))
        with np.load(path) as file:
            numbers = sum(file[key].size for key in file.files if "pre_logits" not in key)
    except KeyError as error:
        raise ValueError(f"{path} does not fit the model: missing {error.args[0].split()[0]}") from error
    except Exception as error:  # the reader raises nearly anything for a damaged or foreign file
        raise ValueError(f"{path} is not a readable .npz of a vision transformer: {error}") from error
    problems = [f"missing {name}" for name, p in model.named_parameters() if p.isnan().any()]
    needed = sum(p.numel() for p in model.parameters())
    if not problems and numbers != needed:
        problems = [f"it holds {numbers} numbers where the model has {needed}"]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f"{path} does not fit the model: {'; '.join(problems[:5])}{more}")


def _create(card: dict[str, Any], pretrained: bool) -> torch.nn.Module:
    try:
        return timm.create_model(card["architecture"], pretrained=pretrained, **card["kwargs"])
    except TypeError as error:
        raise ValueError(f"the architecture {card['architecture']} rejects its kwargs: {error}") from error
    except OSError as error:
        raise ValueError(
            f"the weights of {card['architecture']} are not on this machine and could not be downloaded: "
            "go online once, or set model.checkpoint and model.config"
        ) from error


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of a state dict, independent of its order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
