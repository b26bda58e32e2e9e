"""Folders of domain folders of class folders: PACS, DomainNet, ImageNet-R and its relatives, or your own images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tta_bench.datasets.classification.image_domains import ImageDomains, OnBadImage, from_files
from tta_bench.datasets.files.class_folders import check_list, class_folders, files_of, find_images, some
from tta_bench.datasets.files.class_names import IMAGENET, IMAGENET_SUBSET, label_map
from tta_bench.datasets.files.image_files import Crop, Interpolation
from tta_bench.files import existing


def image_folder(
    *,
    root: str,
    domains: str | list[str] | None = None,
    classes: str | None = None,
    num_images: int | None = None,
    image_size: int | None = 224,
    resize: int | None = 256,
    interpolation: Interpolation = "bilinear",
    source_images: str | None = None,
    on_bad_image: OnBadImage = "fail",
) -> ImageDomains:
    """Any images in <root>/<domain>/<class>/: PACS, DomainNet, ImageNet-R, -Sketch, -A and -V2, or your own.

    Args:
        root: Folder with one folder per domain.
        domains: Names of the folders to use, in their usual order; None uses all except ``source_images``, by name.
        classes: How class folders are mapped to labels. None: by sorted name; every domain must then have the same
            classes. ``imagenet``: 0 to 999 by WordNet id, or by the folders ``0`` to ``999`` of ImageNet-V2; a domain
            may have only some of the classes. ``imagenet_subset``: the same, and predictions are restricted to the
            classes that occur in any domain, as published for the 200 classes of ImageNet-R and -A. Or the path of a
            text file with one class name per line, in label order; other folders are left out.
        num_images: Use only this many images of each domain, evenly spaced in name order; None uses all.
        image_size: Side of the centre crop; None keeps the images as they are (this requires ``resize=null`` and
            images of one size).
        resize: Length to which the shorter side is resized first; None leaves it.
        interpolation: Interpolation filter for resizing.
        source_images: A folder of class folders with images of the source domain, cropped in the same way, for the
            methods that need them; it may be inside ``root``.
        on_bad_image: ``fail``: an image that cannot be read ends the run when it is needed. ``skip``: damaged files
            are detected when the data set is opened, left out of the stream and named in the result.

    Raises:
        FileNotFoundError: If a folder or a list does not exist.
        ValueError: If a domain lacks a class or an argument is wrong; the message says what to do.
    """
    crop = Crop(image_size, resize, interpolation)
    top = existing("dataset.root", root, "folder")
    source = None if source_images is None else existing("dataset.source_images", source_images, "folder")
    folders = _domain_folders(top, domains, source)
    given = None if classes is None else label_map(IMAGENET if classes == IMAGENET_SUBSET else classes)
    if given is not None and classes not in (IMAGENET, IMAGENET_SUBSET):
        for folder in [*folders.values(), *([source] if source else [])]:
            check_list(folder, given)
    found = {name: find_images(folder, given) for name, folder in folders.items()}
    facts: dict[str, Any] = {}
    if given is not None and classes == IMAGENET_SUBSET:
        kept = sorted({given[name] for each in found.values() for name in each.images})
        given = {name: kept.index(given[name]) for name in given if given[name] in kept}
        facts = {"model_classes": kept}
    clean = None if source is None else find_images(source, given)
    everywhere = [*found.values(), *([clean] if clean else [])]
    labels = given or label_map(None, (name for each in everywhere for name in each.images))
    if given is None:
        for name, each in found.items():
            if missing := [label for label in labels if label not in each.images]:
                raise ValueError(
                    f"{folders[name]} lacks the class {missing[0]}, which another domain has: add it, or list the "
                    "classes in dataset.classes"
                )
    files = {name: files_of(folders[name], each, labels, crop) for name, each in found.items()}
    cut = None if source is None or clean is None else files_of(source, clean, labels, crop)
    facts = {"classes": len(set(labels.values())), **facts, **crop.describe()}
    return from_files("image_folder", files, cut, facts, num_images, on_bad_image)


def _domain_folders(root: Path, domains: str | list[str] | None, source: Path | None) -> dict[str, Path]:
    there = class_folders(root)
    if domains is None:
        names = [name for name in there if source is None or (root / name).resolve() != source.resolve()]
    else:
        names = [domains] if isinstance(domains, str) else list(domains)
    if not names:
        raise ValueError(f"{root} contains no domain folders")
    for name in names:
        if name not in there:
            raise FileNotFoundError(f"{root} has no domain {name!r}; it holds: {some(there)}")
    return {name: root / name for name in names}
