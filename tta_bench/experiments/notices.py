"""Notices about an input that may be misread: the run is possible, but its numbers may not mean what they seem to.

Data are examined before a run, its error afterwards. ``run``, ``bench`` and ``doctor`` say the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from tta_bench.console import say
from tta_bench.datasets.base import DomainDataset, SegmentationDataset, has_label_maps, has_unlabelled
from tta_bench.datasets.classification.corrupted import CorruptedDomains
from tta_bench.datasets.files.class_folders import left_out_told, some
from tta_bench.datasets.files.label_maps import IGNORE
from tta_bench.experiments.source_model import FROM_FOLDERS, known_classes
from tta_bench.models.backbones.base import Backbone

MOST_MAPS = 200  # label maps that are searched for classes before a run
CLOSE = 0.95  # an error of so much of that of guessing is suspicious
UNLABELLED = ("unknown", "unlabeled", "unlabelled", "unsorted")  # usual names of folders of images without a label


class Notice(NamedTuple):
    """A sentence, and what it is about."""

    about: str
    told: str


def data_notices(domains: DomainDataset, dataset: Mapping[str, Any]) -> Iterator[Notice]:
    """What is left out of the data, which classes they lack, and where labels come from.

    Args:
        domains: The data set.
        dataset: Its configuration.

    Raises:
        ValueError: If a label map cannot be read.
    """
    yield from _not_shown(domains)
    yield from _own_stream(domains, dataset)
    if has_label_maps(domains):
        yield from _absent_pixels(domains)
    elif not has_unlabelled(domains):  # few labels do not tell which classes there are
        yield from _absent_classes(domains)
    yield from _order(domains, dataset)


def model_notices(domains: DomainDataset, backbone: Backbone) -> Iterator[Notice]:
    """Other weights in the model's file, and more classes than there are labels.

    Args:
        domains: The data set.
        backbone: The model, with as many classes as it chooses among.
    """
    origin = backbone.weights_origin or {}
    if others := origin.get("also_fits"):
        yield Notice(
            "other weights",
            f"the weights are {origin['key']}; {', '.join(others)} would fit, too (model.checkpoint_key={others[0]})",
        )
    if not has_label_maps(domains) and not has_unlabelled(domains) and known_classes(domains) is None:
        highest = max(int(domains.labels(name).max()) for name in domains.domains)
        if highest + 1 < backbone.num_classes:
            yield Notice(
                "classes of the model",
                f"the highest label is {highest}, but the model has {backbone.num_classes} classes: "
                "are they those of the data?",
            )


def _not_shown(domains: DomainDataset) -> Iterator[Notice]:
    """Files and folders among the images that are not read, and damaged images that are skipped."""
    data = domains.describe()
    data = data.get("packed_from", data)
    yield from (Notice("left out", told) for told in left_out_told(data))
    if number := (skipped := data.get("skipped_images", {})).get("number"):
        are = "damaged image is" if number == 1 else "damaged images are"
        yield Notice("damaged images", f"{number} {are} left out, first {skipped['first'][0]}")


def _own_stream(domains: DomainDataset, dataset: Mapping[str, Any]) -> Iterator[Notice]:
    """The order of a manifest's images, how many have a label, and columns that are not used."""
    data = domains.describe()
    if "order_of_images" not in data:
        return
    if dataset.get("images"):
        yield Notice("order", f"the images are in the order of {data['order_of_images']}")
    if unused := data.get("unused_columns"):
        yield Notice("columns", f"columns that are not used: {some(unused)}")
    if (labelled := data["labelled"]) < (total := sum(data["num_images"].values())):
        scored = "errors are over these" if labelled else "there are no errors, and methods cannot be ranked by them"
        yield Notice("labels", f"{labelled} of {total} images have a label: {scored}")


def _absent_classes(domains: DomainDataset) -> Iterator[Notice]:
    """Classes that no image has, and the domain that lacks most of the others."""
    held = {name: set(np.unique(domains.labels(name)).tolist()) for name in domains.domains}
    shown = set[int]().union(*held.values())
    names: Sequence[str] = getattr(domains, "class_names", ())
    count = len(names) or max(known_classes(domains) or 0, max(shown) + 1)

    def listed(labels: set[int]) -> str:
        found = [f"{names[k]} ({k})" if k < len(names) else str(k) for k in sorted(labels)]
        return f"the class {found[0]}" if len(found) == 1 else f"{len(found)} of {count} classes: {some(found, 5)}"

    if absent := set(range(count)) - shown:
        yield Notice("absent classes", f"no image has {listed(absent)}")
    lacking = {name: missing for name, labels in held.items() if (missing := shown - labels)}
    if lacking:
        worst = max(lacking, key=lambda name: len(lacking[name]))
        others = [name for name in lacking if name != worst]
        also = f"; other domains that lack classes: {some(others)}" if others else ""
        yield Notice("absent classes", f"no image of {worst} has {listed(lacking[worst])}{also}")


def _absent_pixels(domains: SegmentationDataset) -> Iterator[Notice]:
    """Classes that no pixel has."""
    seen = _pixels(domains)
    if absent := [f"{name} ({k})" for k, name in enumerate(domains.classes) if k not in seen.values]:
        among = f"{seen.looked_at} of {seen.of}" if seen.looked_at < seen.of else str(seen.of)
        told = f"no pixel of {among} label maps has the class{'es' * (len(absent) > 1)} {some(absent)}"
        if IGNORE in seen.values:
            told += f", and pixels of {IGNORE} are not scored: are the masks 0 and {IGNORE} where 0 and 1 are meant?"
        yield Notice("absent classes", told)


class _Seen(NamedTuple):
    values: set[int]
    looked_at: int
    of: int


def _pixels(domains: SegmentationDataset) -> _Seen:
    """Values in label maps, spread evenly over the data; the search ends once every class has been seen."""
    shown = domains.domains[:1] if isinstance(domains, CorruptedDomains) else domains.domains  # labels are the same
    rows = [(name, i) for name in shown for i in range(len(domains.labels(name)))]
    picked = np.unique(np.linspace(0, len(rows) - 1, min(MOST_MAPS, len(rows))).astype(int))
    values: set[int] = set()
    for number, k in enumerate(picked, start=1):
        values |= set(np.unique(domains.label_map(*rows[k])).tolist())
        if values >= set(range(len(domains.classes))):
            return _Seen(values, number, len(rows))
    return _Seen(values, len(picked), len(rows))


def _order(domains: DomainDataset, dataset: Mapping[str, Any]) -> Iterator[Notice]:
    """Labels that nothing but the names of folders decides."""
    names: Sequence[str] = getattr(domains, "class_names", ())
    if not _by_folder_names(domains, dataset):
        return
    if odd := [name for name in names if name.lower() in UNLABELLED]:
        yield Notice(
            "label order",
            f"the folder {odd[0]} is taken for a class: if its images have no labels, move it away, or list the "
            "classes in dataset.classes",
        )
    yield Notice(
        "label order",
        f"labels follow the names of the class folders ({label_pairs(names)}): if the model's classes are in another "
        "order, list them in dataset.classes",
    )


def label_pairs(names: Sequence[str]) -> str:
    """The first names with their labels, and the last one.

    Example:
        >>> label_pairs(["cat", "dog"])
        'cat = 0, dog = 1'
    """
    pairs = [f"{name} = {label}" for label, name in enumerate(names)]
    return ", ".join(pairs if len(pairs) <= 5 else [*pairs[:3], "...", pairs[-1]])


def _by_folder_names(domains: DomainDataset, dataset: Mapping[str, Any]) -> bool:
    return domains.name in FROM_FOLDERS and bool(getattr(domains, "class_names", ())) and not dataset.get("classes")


def error_notice(
    error: float, domains: DomainDataset, dataset: Mapping[str, Any], backbone: Backbone, method: str = "source"
) -> str | None:
    """What an error close to that of guessing, or above it, may come from; None if it is clearly lower.

    Args:
        error: Error of a method, in percent; of pixels where these are classified.
        domains: The data set.
        dataset: Its configuration.
        backbone: The model.
        method: Whose error it is; that of another method than Source may also come from the adaptation.
    """
    guess = 100 * (1 - 1 / backbone.num_classes)
    if error < CLOSE * guess:
        return None
    told = f"guessing gives {guess:.1f} %: do the labels and the model match? "
    if has_label_maps(domains):
        told += "Compare the numbers or colours of the classes in dataset.classes with those of the model"
    elif _by_folder_names(domains, dataset):
        told += "Labels follow the names of the class folders; list the classes in the model's order in dataset.classes"
    elif dataset.get("classes"):
        told += "Compare dataset.classes with the order of the model's classes, and check model.mean and model.std"
    else:
        told += "Check the order of the model's classes, and its preprocessing"
    return told if method == "source" else f"{told}. If the error of method=source is low, the adaptation failed"


def say_new(console: Console, notices: Sequence[str], said: set[str]) -> None:
    """Print notices that have not been printed yet, and add them to ``said``."""
    for told in notices:
        if told not in said:
            say(console, f"note: {told}", "yellow")
            said.add(told)
