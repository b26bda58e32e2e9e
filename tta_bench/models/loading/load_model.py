"""From a name or a local file to a backbone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.linear_head import LinearHeadBackbone
from tta_bench.models.backbones.timm_cnn import TimmBackbone
from tta_bench.models.backbones.vit import DistilledViTBackbone, ViTBackbone
from tta_bench.models.loading.factories import call_factory, robustbench_card, torchvision_card
from tta_bench.models.preprocess import Preprocess, Profile, check_normalisation, profile_of
from tta_bench.models.zoo import shapes_vit as _register_shapes_vit  # noqa: F401  (makes timm know the architecture)
from tta_bench.suggestions import did_you_mean

PACKAGED = {"shapes_vit": "shapes_vit"}  # name -> stem of its .yaml and .safetensors in this package's weights/
CARD_KEYS = {"architecture", "kwargs", "mean", "std"}
# Numbers of numpy, such as a best accuracy, in a file of weights: they run no code either.
_SCALARS: list[Any] = [np.dtype, *(type(np.dtype(kind)) for kind in ("f4", "f8", "i8"))]
_SCALARS += [(np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]


def load_model(
    name: str | None = None,
    *,
    checkpoint: str | Path | None = None,
    config: str | Path | None = None,
    preprocess: Profile = "timm",
    source_preprocess: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Backbone:
    """Build a source model.

    Args:
        name: ``shapes_vit`` (weights in the package); a timm model by its full tag, for example
            ``vit_base_patch16_224.augreg2_in21k_ft_in1k``; ``torchvision/resnet50`` and the like, with ``checkpoint``;
            or, if that package is installed, ``robustbench/<data set>/<threat>/<model>``. Not needed with ``config``.
        checkpoint: Local weights: .safetensors, a .pt / .pth / .th state dict, or, for a timm vision transformer, the
            .npz of its authors. Without it, timm downloads.
        config: A yaml with ``architecture`` (a timm model name, or ``package.module:function``, whose code is run),
            ``kwargs`` (its arguments) and the normalisation ``mean`` and ``std``; needs ``checkpoint``.
        preprocess: ``timm``: the normalisation of the checkpoint. ``native``: none, values in [0, 1]. ``paper``: as
            the released code of ViDA and DPCore, none and, for a network of 224 pixels, resizing to 256 and cutting
            out 224.
        source_preprocess: The same for the images that a method learns the source from; None takes ``preprocess``.
            The released DPCore has ``timm`` there and ``paper`` for the stream.
        mean: Overrides the normalisation mean per channel, for images in [0, 1]; needs ``std``.
        std: Overrides the normalisation standard deviation per channel; needs ``mean``.

    Returns:
        The backbone in eval mode, float32, with attributes ``weights_sha256`` and ``preprocess``.

    Raises:
        ValueError: If the name, the yaml or the checkpoint is wrong; the message says what to do.
        FileNotFoundError: If a file does not exist.
    """
    card, network = load_network(name, checkpoint, config)
    sha256 = weights_sha256(network.state_dict())
    own = profile_of(preprocess, card["mean"], card["std"], input_size(network, card))
    if mean is not None or std is not None:
        own = Preprocess("own", *check_normalisation(mean, std), own.resize)
    backbone = _wrap(network, own).eval()
    backbone.weights_sha256, backbone.preprocess = sha256, own
    if source_preprocess is not None:
        other = profile_of(source_preprocess, card["mean"], card["std"], input_size(network, card))
        backbone.source_preprocess = None if other == own else other
    return backbone


def load_network(
    name: str | None, checkpoint: str | Path | None, config: str | Path | None
) -> tuple[dict[str, Any], torch.nn.Module]:
    """A network as its library makes it, in eval mode, and its description: what a model yaml holds.

    The arguments, and what is raised, are those of ``load_model``.
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
        card = _named_card(name, checkpoint)
    return card, _network(card, None if checkpoint is None else Path(checkpoint)).eval()


def _wrap(network: torch.nn.Module, preprocess: Preprocess) -> Backbone:
    """A backbone that gives the network's own scores.

    Raises:
        ValueError: If there is none: the network does more than pool its features and score them with a linear layer.
    """
    values = preprocess.mean, preprocess.std
    if not isinstance(network, VisionTransformer) and not hasattr(network, "forward_head"):
        return LinearHeadBackbone(network, *values)  # it compares the scores itself
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
            "scores would not be its own here: choose another architecture"
        )
    return backbone


def _image_shape(network: torch.nn.Module) -> tuple[int, int]:
    """Height and width of images that a timm network takes."""
    known: Any = network
    fixed = getattr(getattr(network, "patch_embed", None), "img_size", None)
    height, width = fixed or known.pretrained_cfg["input_size"][1:]
    return int(height), int(width)


def input_size(network: torch.nn.Module, card: Mapping[str, Any]) -> int | None:
    """Side of the images that the weights were trained on; None if the description does not tell."""
    if isinstance(network, VisionTransformer):
        return int(network.patch_embed.img_size[0])
    return card.get("image_size")


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
    return _timm_card(name)


_UNNORMALISED = {"kwargs": {}, "mean": (0.0,) * 3, "std": (1.0,) * 3}


def _read_card(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no model description at {path}")
    card = OmegaConf.to_container(OmegaConf.load(path))
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
        raise ValueError(f"{what}; give one of: {', '.join(tags) or 'none (use model.checkpoint with model.config)'}")
    settings = timm.get_pretrained_cfg(name)
    size = settings.input_size[-1]
    return {"architecture": name, "kwargs": {}, "mean": settings.mean, "std": settings.std, "image_size": size}


def _near_architecture(architecture: str) -> str:
    return did_you_mean(architecture, (), more=[*PACKAGED, *timm.list_models("vit*")])


def _network(card: dict[str, Any], checkpoint: Path | None) -> torch.nn.Module:
    """The network with its weights."""
    if ":" in card["architecture"]:
        network = call_factory(card["architecture"], card["kwargs"])
    else:
        network = _create(card, pretrained=checkpoint is None)
    if checkpoint is None:
        return network
    if checkpoint.suffix == ".npz":
        _load_npz(network, checkpoint)
        return network
    try:
        _load_weights(network, checkpoint)
        return network
    except ValueError:
        converted = None if ":" in card["architecture"] else _as_timm_would(card, network, checkpoint)
        if converted is None:
            raise
        return converted


def _as_timm_would(card: dict[str, Any], network: torch.nn.Module, checkpoint: Path) -> torch.nn.Module | None:
    """Weights under the names that their authors gave them, which timm changes on the way; None if they do not fit."""
    state = _read_state_dict(checkpoint)
    if set(state) == set(network.state_dict()):  # of another shape: timm would resample them without a word
        return None
    overlay = {"state_dict": state, "num_classes": network.num_classes}  # or the classifier would be left out
    try:
        return timm.create_model(
            card["architecture"], pretrained=True, pretrained_cfg_overlay=overlay, **card["kwargs"]
        )  # fmt: skip
    except Exception:  # its conversions raise nearly anything at files of another kind
        return None


def _load_npz(model: torch.nn.Module, path: Path) -> None:
    """The arrays in which the authors of vision transformers publish them; every weight must come from the file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    load: Any = getattr(model, "load_pretrained", None)
    if load is None:
        raise ValueError(f"timm reads no .npz for {type(model).__name__}: give a .safetensors or .pth file")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    try:
        load(str(path))
        with np.load(path) as file:
            numbers = sum(file[key].size for key in file.files if "pre_logits" not in key)
    except KeyError as error:
        raise ValueError(f"{path} does not fit the model: missing {error.args[0].split()[0]}") from error
    except Exception as error:  # a damaged or foreign file makes the reader raise nearly anything
        raise ValueError(f"{path} is not a readable .npz of a vision transformer: {error}") from error
    problems = [f"missing {name}" for name, p in model.named_parameters() if p.isnan().any()]
    needed = sum(p.numel() for p in model.parameters())
    if not problems and numbers != needed:
        problems = [f"it holds {numbers} numbers where the model has {needed}"]
    _refuse(path, problems)


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
    expected = model.state_dict()
    # Files from before torch 0.4.1 lack the counters of batch norm, which no score depends on.
    counters = {k: v for k, v in expected.items() if k.endswith(".num_batches_tracked")}
    state = {**counters, **_read_state_dict(path)}
    problems = [f"missing {k}" for k in expected if k not in state]
    problems += [f"unexpected {k}" for k in state if k not in expected]
    problems += [
        f"{k} has shape {tuple(state[k].shape)} where the model has {tuple(v.shape)}"
        for k, v in expected.items()
        if k in state and state[k].shape != v.shape
    ]
    _refuse(path, problems)
    model.load_state_dict(state)


def _refuse(path: Path, problems: Sequence[str]) -> None:
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f"{path} does not fit the model: {'; '.join(problems[:5])}{more}")


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        with torch.serialization.safe_globals(_SCALARS):
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
