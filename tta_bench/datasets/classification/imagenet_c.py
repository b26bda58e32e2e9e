"""ImageNet-C as published: JPEG files in <corruption>/<severity>/<WordNet id>/."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tta_bench.datasets.classification.image_domains import ImageDomains, OnBadImage, from_files
from tta_bench.datasets.corruptions.names import check_severity, corruption_and_severity, domain_names
from tta_bench.datasets.files.class_folders import Found, class_folders, files_of, find_images, open_folder, some
from tta_bench.datasets.files.class_names import IMAGENET, imagenet_classes, label_map, read_list
from tta_bench.datasets.files.corrupted_copies import made_by
from tta_bench.datasets.files.image_files import Crop, Interpolation
from tta_bench.files import existing

_ROBUSTBENCH_LIST = "helper_files/imagenet_test_image_ids.txt"


def imagenet_c(
    *,
    root: str,
    domains: str | list[str] = "common",
    severity: int = 5,
    subset: str | None = None,
    num_images: int | None = None,
    classes: str = IMAGENET,
    image_size: int = 224,
    resize: int | None = None,
    interpolation: Interpolation = "bilinear",
    source_images: str | None = None,
    on_bad_image: OnBadImage = "fail",
) -> ImageDomains:
    """ImageNet-C: the ImageNet validation images under each corruption, 224x224, a thousand classes.

    Args:
        root: Folder with one folder per corruption.
        domains: ``common`` (the 15), ``validation`` (the 4), or a list of corruptions, optionally with their own
            severity as in ``fog/3``.
        severity: 1 to 5.
        subset: None uses all 50,000 images of a domain; ``robustbench`` the 5,000 of most CTTA papers, as listed in
            the package ``robustbench``, which must be installed; or the path of a text file with one line per image,
            such as ``n01440764/ILSVRC2012_val_00000293.JPEG``.
        num_images: Use only this many images of each domain, evenly spaced in name order; None uses all.
        classes: ``imagenet`` for labels 0 to 999; or the path of a text file with one WordNet id per line, in label
            order, for a model with fewer classes.
        image_size: Side of the centre crop.
        resize: Length to which the shorter side is resized first; None leaves the published 224 pixels as they are,
            256 matches the RobustBench loader.
        interpolation: Interpolation filter for resizing.
        source_images: A folder of clean images with one folder per WordNet id, for the methods that need them. They
            are cropped in the same way; without ``resize``, they are first resized to ``image_size`` / 0.875, as the
            published images were.
        on_bad_image: ``fail``: an image that cannot be read ends the run when it is needed. ``skip``: damaged files
            are detected when the data set is opened, left out of the stream and named in the result; damage in the
            middle of a file is not detected and still ends the run.

    Raises:
        FileNotFoundError: If a folder or a list does not exist.
        ValueError: If a class or an image is missing, or an argument is wrong; the message says what to do.

    Source: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", ICLR 2019; Zenodo record 2235448.
    """
    check_severity(severity)
    crop, labels = Crop(image_size, resize, interpolation), label_map(classes)
    chosen = None if subset is None else _subset(subset, labels)
    needed = imagenet_classes() if classes == IMAGENET else tuple(labels)
    files, top = {}, existing("dataset.root", root, "folder")
    for domain in domain_names(domains):
        folder = _domain_folder(top, domain, severity)
        found = _all_classes(folder, labels, needed) if chosen is None else _listed(folder, chosen)
        files[domain] = files_of(folder, found, labels, crop)
    clean_crop = Crop(image_size, resize or round(image_size / 0.875), interpolation)
    source = None
    if source_images is not None:
        source = open_folder(existing("dataset.source_images", source_images, "folder"), classes, clean_crop)
    facts: dict[str, Any] = {"severity": severity, "classes": len(needed), **crop.describe(), **made_by(top)}
    if chosen is not None:
        facts["subset"] = {"name": Path(str(subset)).name, "images": len(chosen), "sha256": _sha256(chosen)}
    return from_files("imagenet_c", files, source, facts, num_images, on_bad_image)


def _domain_folder(root: Path, domain: str, severity: int) -> Path:
    corruption, chosen = corruption_and_severity(domain, severity)
    folder = root / corruption / str(chosen)
    if not folder.is_dir() and folder.parent.is_dir():
        raise FileNotFoundError(
            f"{folder.parent} lacks severity {chosen}; it holds: {some(class_folders(folder.parent))}"
        )
    if not folder.is_dir():
        there = class_folders(root) + sorted(file.name for file in root.glob("*.tar"))
        raise FileNotFoundError(f"{root} lacks {corruption}/{chosen}; it holds: {some(there)}")
    return folder


def _all_classes(folder: Path, labels: Mapping[str, int], needed: Sequence[str]) -> Found:
    found = find_images(folder, labels)
    if missing := [name for name in needed if name not in found.images]:
        raise ValueError(
            f"{folder} lacks {len(missing)} of {len(needed)} classes: {some(missing, 3)}; complete it, or list the "
            "available images in dataset.subset"
        )
    return found


def _listed(folder: Path, chosen: Sequence[str]) -> Found:
    wanted: dict[str, list[str]] = {}
    for line in chosen:
        name, _, image = line.partition("/")
        wanted.setdefault(name, []).append(image)
    found = find_images(folder, wanted)
    there = {f"{name}/{image}" for name, images in found.images.items() for image in images}
    if missing := [line for line in chosen if line not in there]:
        raise ValueError(f"{folder} lacks {len(missing)} of the {len(chosen)} images listed, first {missing[0]}")
    return Found(wanted, Counter())  # the list decides what is used: nothing is left out by accident


def _subset(subset: str, labels: Mapping[str, int]) -> list[str]:
    """Return the listed images in name order."""
    path = _robustbench_list() if subset == "robustbench" else Path(subset)
    lines = sorted(read_list(path, "dataset.subset"))
    for line in lines:
        name, slash, image = line.partition("/")
        if name not in labels or not slash or not image or "/" in image:
            raise ValueError(f"{path} holds {line!r}, which is not an image of a known class like n01440764/x.JPEG")
    return lines


def _robustbench_list() -> Path:
    spec = find_spec("robustbench")  # finds the package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            "dataset.subset=robustbench requires the package robustbench: pip install --no-deps robustbench, or set "
            "dataset.subset to the path of the list"
        )
    return Path(spec.submodule_search_locations[0]) / _ROBUSTBENCH_LIST


def _sha256(lines: Sequence[str]) -> str:
    """Hash the listed names, independent of line endings."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
