"""The source model of a run, and whether it fits the data."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from tta_bench.config.compose import build
from tta_bench.config.words import ConfigError
from tta_bench.datasets.base import DomainDataset, has_label_maps
from tta_bench.datasets.files.class_folders import some
from tta_bench.datasets.files.class_names import imagenet_classes
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.class_subset import keep_classes

# Classes of the data sets that have the same ones always; those of others are counted when they are opened.
CLASSES = {"shapes_c": 10, "scenes_c": 20, "cifar10_c": 10, "cifar100_c": 100}
FROM_FOLDERS = ("image_folder", "corrupted")
FOLDERS_REMEDY = ", or list the model's classes, in its order, in dataset.classes"


def source_model(node: DictConfig, name: str, domains: DomainDataset) -> Backbone:
    """Build the model that a node describes; it predicts only the classes that the data set allows.

    Args:
        node: The configuration of the model.
        name: Its name, for messages.
        domains: The data set.

    Raises:
        ConfigError: If the model does not fit the data: it is for the other task, has too few classes, or would resize
            images that the data set has already resized.
        ValueError: If the model cannot be built.
    """
    backbone: Backbone = build(node)
    _check_classes(backbone, name, domains)
    if (kept := _told(domains, "model_classes")) is not None:
        keep_classes(backbone, kept)
    if backbone.preprocess.resize is not None and (resize := _told(domains, "resize")) is not None:
        raise ConfigError(
            f"the data set (dataset.resize={resize}) and model.preprocess={backbone.preprocess.profile} would both "
            "resize the images: use model.preprocess=native, which differs in nothing else"
        )
    return backbone


def known_classes(domains: DomainDataset) -> int | None:
    """How many classes a model for this data set has; None where only labels are known, as of arrays."""
    if _told(domains, "model_classes") is not None:  # some of ImageNet's, among which its model chooses
        return len(imagenet_classes())
    found = _told(domains, "classes")
    return int(found) if found is not None else CLASSES.get(domains.name)


def _told(domains: DomainDataset, key: str) -> Any:
    data = domains.describe()
    return data.get("packed_from", data).get(key)


def _check_classes(backbone: Backbone, name: str, domains: DomainDataset) -> None:
    data, known = domains.name, backbone.num_classes
    if has_label_maps(domains) != backbone.segments:
        of = "image", "pixel"
        raise ConfigError(
            f"{data} has a class per {of[has_label_maps(domains)]}, and model={name} scores every "
            f"{of[backbone.segments]}: choose another model"
        )
    if has_label_maps(domains):
        if len(domains.classes) != known:
            raise ConfigError(
                f"{data} has {len(domains.classes)} classes ({', '.join(domains.classes)}), but model={name} "
                f"has {known}: choose a model with these classes"
            )
        return
    expected = known_classes(domains)
    if expected is not None and expected != known:
        names = getattr(domains, "class_names", ())
        told = f"{expected} class{'es' * (expected != 1)}" + (
            f" ({some(names)})" if len(names) == expected <= 10 else ""
        )
        raise ConfigError(
            f"{data} has {told}, but model={name} has {known}: choose a model with these classes"
            + FOLDERS_REMEDY * (data in FROM_FOLDERS)
        )
    labels = [int(domains.labels(each).max()) for each in domains.domains]
    if expected is None and max(labels) >= known:
        raise ConfigError(
            f"the data has a label {max(labels)}, but the model has {known} classes (0 to {known - 1}): "
            "choose a model with these classes"
        )
