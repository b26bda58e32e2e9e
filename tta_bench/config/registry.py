"""Configuration nodes generated from the signatures of classes, so that each default is defined in one place."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra_zen import builds

from tta_bench.config.launch import LocalLauncher, RayLauncher
from tta_bench.config.words import ConfigError, Override
from tta_bench.datasets.classification.cifar_c import cifar10_c, cifar100_c
from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.imagenet_c import imagenet_c
from tta_bench.datasets.classification.manifest import manifest
from tta_bench.datasets.classification.packed import packed
from tta_bench.datasets.classification.scenes_c import scenes_c
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.datasets.segmentation.driving import acdc, cityscapes
from tta_bench.datasets.segmentation.folder import segmentation_folder
from tta_bench.datasets.segmentation.streets_c import streets_c
from tta_bench.streams import KINDS, NOT_SETTINGS, PRESETS

# Data sets with a class per pixel, and their default overrides: a segmentation model, and single images, as published.
SEGMENTATION: dict[str, tuple[str, ...]] = {
    "streets_c": ("model=streets_segformer", "setting.batch_size=1"),
    "acdc": ("model=segformer_b5", "setting.batch_size=1"),
    "cityscapes": ("model=segformer_b5", "setting.batch_size=1"),
    "segmentation_folder": ("model=segformer", "setting.batch_size=1"),
}
USUAL: dict[str, tuple[str, ...]] = {
    **SEGMENTATION,
    "manifest": ("setting=as_given",),
    "scenes_c": ("model=scenes_vit",),
    "scenes_c_validation": ("model=scenes_vit",),
}
"""What any data set stands for where a run does not say otherwise."""
DATASETS: dict[str, Callable[..., Any]] = {
    "shapes_c": shapes_c,
    "scenes_c": scenes_c,
    "corrupted": corrupted,
    "cifar10_c": cifar10_c,
    "cifar100_c": cifar100_c,
    "imagenet_c": imagenet_c,
    "image_folder": image_folder,
    "manifest": manifest,
    "packed": packed,
    "streets_c": streets_c,
    "acdc": acdc,
    "cityscapes": cityscapes,
    "segmentation_folder": segmentation_folder,
}
LAUNCHERS: dict[str, type] = {"local": LocalLauncher, "ray": RayLauncher}


def config_folder() -> Path:
    """The folder of yaml files: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


@cache
def register_light() -> None:
    """Register settings and data sets, which are all that a stream needs, and launchers, without torch."""
    store = ConfigStore.instance()
    for name, (kind, values) in {**{kind: (kind, {}) for kind in KINDS}, **PRESETS}.items():
        own = {
            key: list(p.default) if isinstance(p.default, tuple) else p.default
            for key, p in inspect.signature(KINDS[kind]).parameters.items()
            if key not in NOT_SETTINGS
        }
        store.store(group="setting", name=name, node={"kind": kind, **own, "rounds": 1, "order": None, **values})
    for name, make in DATASETS.items():
        store.store(group="dataset", name=name, node=builds(make, populate_full_signature=True))
    for name, launcher in LAUNCHERS.items():
        store.store(group="launcher", name=name, node=builds(launcher, populate_full_signature=True))


@cache
def register_all() -> None:
    """Register everything, methods and models included. Imports torch."""
    from tta_bench.methods import METHODS
    from tta_bench.models.loading.load_model import load_model
    from tta_bench.models.loading.segformer import load_segformer

    register_light()
    store = ConfigStore.instance()
    for name, cls in METHODS.items():
        register_method(name, cls)
    store.store(group="model", name="timm", node=builds(load_model, populate_full_signature=True))
    store.store(group="model", name="local", node=builds(load_model, populate_full_signature=True))
    store.store(group="model", name="segformer", node=builds(load_segformer, populate_full_signature=True))


def register_method(name: str, cls: type) -> None:
    """Let ``method=<name>`` build ``cls`` from its keyword arguments."""
    # The backbone is passed when the method is built; the seed is the run's.
    node = builds(cls, populate_full_signature=True, zen_partial=True, zen_exclude=("backbone", "seed"))
    ConfigStore.instance().store(group="method", name=name, node=node)


def register_classes(words: Sequence[Override]) -> list[Override]:
    """Register classes given by their import path as options: ``method=mypkg.MyMethod``, ``callbacks=[mypkg.Mine]``.

    Returns:
        The overrides, with class names instead of import paths.

    Raises:
        ValueError: If a class does not exist, or is not of the kind that the group takes.
    """
    named = [word.under("method") if word.key == "method._target_" else word for word in words]
    own = [word for word, before in zip(named, words, strict=True) if word is not before]
    found = []
    for word in named:
        if word.key == "method" and own and word not in own:
            continue  # method._target_ takes precedence
        if word.key in BASES:
            items = word.value if isinstance(word.value, list) else [word.value]
            names = [_option(word.key, str(item)) for item in items]
            listed = f"[{','.join(names)}]" if isinstance(word.value, list) else names[0]
            found.append(Override(word.key, listed, names if isinstance(word.value, list) else names[0]))
        else:
            found.append(word)
    return found


BASES = {"method": "TTAMethod", "logger": "Logger", "callbacks": "Callback"}
"""Groups that accept a user's class, and its required base class."""


def _option(group: str, name: str) -> str:
    if "." not in name:
        return name
    cls = import_class(name)
    if BASES[group] not in (base.__name__ for base in cls.__mro__):
        raise ConfigError(f"{group}={name}: {cls.__name__} is not a {BASES[group]}")
    if group == "method":
        register_method(cls.__name__, cls)
    else:  # save_dir is the run's own folder
        own = ("save_dir",) if "save_dir" in inspect.signature(cls).parameters else ()
        node = {cls.__name__: builds(cls, populate_full_signature=True, zen_exclude=own)}
        ConfigStore.instance().store(group=group, name=cls.__name__, node=node)
    return cls.__name__


def import_class(path: str) -> type:
    """Import ``package.module.Class``.

    Raises:
        ValueError: If the class does not exist.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import the class {path!r} ({error}): is its folder on PYTHONPATH?") from error
    if not inspect.isclass(found):
        raise ValueError(f"{path!r} is not a class")
    return found
