"""Loads a SegFormer backbone from a configuration and a checkpoint of mmsegmentation.

The extra installs the maintained fork (onedl-mmsegmentation): it has the import names, architectures and weight names
of the official packages, and works without ``mmcv.ops``, which those import but no longer have wheels or a build for.
Official packages whose ``mmcv`` has its ops work as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from torch import nn

from tta_bench.files import existing
from tta_bench.models.backbones.segformer import SegFormerBackbone, Sliding
from tta_bench.models.loading.checkpoint import load_weights
from tta_bench.models.loading.load_model import weights_sha256
from tta_bench.models.preprocess import check_normalisation
from tta_bench.suggestions import did_you_mean

WEIGHTS = Path(__file__).parents[1] / "weights"
PACKAGED = ("streets_segformer",)
CARD_KEYS = {"architecture", "kwargs", "mean", "std", "classes"}
HEADS = (1, 2, 5, 8)  # of the four stages; the width of a stage is this times that of the first


class SegFormer(nn.Module):
    """Encoder and head, with the names of mmsegmentation's checkpoints.

    Args:
        backbone: Keyword arguments of mmsegmentation's ``MixVisionTransformer``.
        decode_head: Keyword arguments of its ``SegformerHead``.

    Raises:
        ValueError: If mmsegmentation is missing, or rejects the arguments.
    """

    def __init__(self, backbone: Mapping[str, Any], decode_head: Mapping[str, Any]) -> None:
        super().__init__()
        models = _registry()
        # After the encoder every process has the whole batch, so there is nothing to synchronise, and the synchronised
        # batch norm of the published configurations cannot run on several CPU processes.
        norm = {**decode_head.get("norm_cfg", {}), "type": "BN"}
        loss = {"type": "CrossEntropyLoss", "avg_non_ignore": True}  # never called; its default warns
        head = {**decode_head, "type": "SegformerHead", "norm_cfg": norm, "loss_decode": loss}
        head["out_channels"] = decode_head.get("num_classes")  # one score per class, even for two classes
        try:
            self.backbone: Any = models.build({**backbone, "type": "MixVisionTransformer", "init_cfg": None})
            self.decode_head: Any = models.build(head)
        except (AssertionError, KeyError, TypeError) as error:
            raise ValueError(f"mmsegmentation cannot build this SegFormer: {error}") from error


class Description(NamedTuple):
    """A model without its weights."""

    network: SegFormer
    mean: Sequence[float] | None  # for images in [0, 1]
    std: Sequence[float] | None
    sliding: Sliding | None


def segformer(
    num_classes: int,
    *,
    embed_dims: int = 32,
    num_layers: Sequence[int] = (2, 2, 2, 2),
    channels: int = 256,
) -> SegFormer:
    """Build a SegFormer-B0, or a narrower one, with weights drawn from torch's generator.

    Args:
        num_classes: K.
        embed_dims: Width of the first stage; 32 in B0.
        num_layers: Layers per stage; two each in B0.
        channels: Width of the head; 256 in B0.
    """
    widths = [embed_dims * heads for heads in HEADS]
    encoder = {"embed_dims": embed_dims, "num_heads": HEADS, "num_layers": num_layers, "qkv_bias": True}
    head = {"in_channels": widths, "in_index": [0, 1, 2, 3], "channels": channels, "num_classes": num_classes}
    network = SegFormer({**encoder, "num_stages": 4, "drop_path_rate": 0.1}, {**head, "dropout_ratio": 0.1})
    network.backbone.init_weights()
    return network


def load_segformer(
    config: str | Path,
    checkpoint: str | Path | None = None,
    *,
    checkpoint_key: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> SegFormerBackbone:
    """Load a source model for segmentation.

    Args:
        config: ``streets_segformer`` (weights in the package); a configuration that mmsegmentation ships, for example
            ``segformer_mit-b5_8xb1-160k_cityscapes-1024x1024``; the path of your own (.py: it is run, as in
            mmsegmentation); or of a .yaml with ``architecture: segformer``, ``kwargs`` (those of ``segformer``),
            ``mean`` and ``std``.
        checkpoint: Local weights: a .pth with ``state_dict`` (everything else in it is ignored), or .safetensors.
        checkpoint_key: Key of the state dict in the checkpoint, as for ``load_model``.
        mean: Overrides the normalisation mean per channel, for images in [0, 1].
        std: Overrides the normalisation standard deviation per channel.

    Returns:
        The backbone in eval mode, float32. It uses sliding windows for large images if the configuration's
        ``test_cfg`` says so.

    Raises:
        ValueError: If mmsegmentation is missing, or the configuration or checkpoint is wrong.
        FileNotFoundError: If a file does not exist.
    """
    if config in PACKAGED:
        checkpoint = checkpoint or WEIGHTS / f"{config}.safetensors"
        config = WEIGHTS / f"{config}.yaml"
    if checkpoint is None:
        raise ValueError(f"{config} describes a model without weights: give model.checkpoint too")
    path = Path(config)
    described = _card(path) if path.suffix in (".yaml", ".yml") else read_mmseg_config(path)
    if mean is None and std is None:
        mean, std = described.mean, described.std
        if mean is None and std is None:
            raise ValueError(f"{config} has no mean and std: set model.mean and model.std")
    try:
        mean, std = check_normalisation(mean, std)
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None
    network = described.network
    origin = load_weights(network, existing("model.checkpoint", checkpoint, "file"), checkpoint_key)
    digest = weights_sha256(network.state_dict())
    backbone = SegFormerBackbone(
        network.backbone, network.decode_head, mean, std, described.sliding
    )  # fmt: skip
    backbone.weights_sha256, backbone.weights_origin = digest, origin._asdict()
    return backbone.eval()


def require_mmseg() -> None:
    """Check that mmsegmentation is installed.

    Raises:
        ValueError: If mmsegmentation is missing.
    """
    if find_spec("mmseg") is None:
        raise ValueError("SegFormer needs mmsegmentation: pip install 'tta_bench[seg]'")


def _registry() -> Any:
    """The registry of mmsegmentation's models."""
    require_mmseg()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about ops that SegFormer does not use
            import mmseg.models
    except (AssertionError, ImportError) as error:  # the official packages lack ops, or their versions do not match
        raise ValueError(
            f"the installed mmsegmentation cannot be imported ({error}): pip uninstall mmsegmentation mmcv mmcv-lite "
            "mmengine, then pip install 'tta_bench[seg]'"
        ) from error
    return mmseg.registry.MODELS


def _card(path: Path) -> Description:
    card: Any = OmegaConf.to_container(OmegaConf.load(existing("model.config", path, "file")))
    if not isinstance(card, dict) or card.get("architecture") != "segformer":
        raise ValueError(f"{path} must contain 'architecture: segformer'")
    if unknown := set(card) - CARD_KEYS:
        raise ValueError(f"{path} has the unknown key {min(unknown)!r}; known are {', '.join(sorted(CARD_KEYS))}")
    try:
        network = segformer(**card.get("kwargs", {}))
    except TypeError as error:
        raise ValueError(f"{path}: the architecture rejects its kwargs: {error}") from error
    return Description(network, card.get("mean"), card.get("std"), None)


def read_mmseg_config(path: Path) -> Description:
    """Build the network that a configuration of mmsegmentation describes.

    Args:
        path: A configuration file, or the name of one that mmsegmentation ships.

    Raises:
        ValueError: If mmsegmentation is missing or does not ship the configuration, or if the file does not describe a
            SegFormer that takes RGB images.
        FileNotFoundError: If the file does not exist.
    """
    _registry()  # first, so that a missing package is reported
    import mmseg
    from mmengine.config import Config

    if path.suffix != ".py":
        shipped = {file.stem: file for file in Path(mmseg.__file__).parent.glob(".mim/configs/segformer/*.py")}
        if str(path) not in shipped:
            hint = did_you_mean(str(path), (), more=shipped)
            raise ValueError(f"mmsegmentation ships no SegFormer configuration {str(path)!r}{hint}")
        path = shipped[str(path)]
    path = existing("model.config", path, "file")
    try:
        config = Config.fromfile(path).to_dict()
    except Exception as error:  # it is a program, which may raise anything
        raise ValueError(f"{path} is not a configuration of mmsegmentation: {error}") from error
    model = config.get("model", {})
    kinds = [part.get("type") for part in (model, model.get("backbone", {}), model.get("decode_head", {}))]
    if kinds != ["EncoderDecoder", "MixVisionTransformer", "SegformerHead"]:
        raise ValueError(f"{path} does not describe a SegFormer, but: {', '.join(map(str, kinds))}")
    network = SegFormer(model["backbone"], model["decode_head"])
    inputs = model.get("data_preprocessor") or config.get("data_preprocessor") or {}
    if inputs and not inputs.get("bgr_to_rgb", False):
        raise ValueError(f"{path}: its data_preprocessor keeps the channel order BGR, but images are RGB")
    mean, std = ([value / 255 for value in inputs[key]] if key in inputs else None for key in ("mean", "std"))
    return Description(network, mean, std, _sliding(model.get("test_cfg") or {}))


def _sliding(test_cfg: Mapping[str, Any]) -> Sliding | None:
    if test_cfg.get("mode", "whole") == "whole":
        return None
    (height, width), (down, right) = test_cfg["crop_size"], test_cfg["stride"]
    return Sliding((height, width), (down, right))
