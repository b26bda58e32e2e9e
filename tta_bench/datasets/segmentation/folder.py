"""Your own images with label PNGs beside them, as CamVid has them."""

from __future__ import annotations

import csv
from pathlib import Path

from tta_bench.datasets.files.class_folders import IMAGE_SUFFIXES, class_folders, image_names
from tta_bench.datasets.files.label_maps import read_class_list
from tta_bench.datasets.segmentation.label_map_domains import (
    CorruptedSegmentation,
    Pair,
    SegmentationDomains,
    SegmentedFiles,
    segmentation_domains,
)


def segmentation_folder(
    *,
    images: str,
    labels: str,
    classes: str,
    label_suffix: str = "",
    table: str | None = None,
    domains: str | list[str] | None = None,
    source_domain: str | None = None,
    image_height: int | None = None,
    num_images: int | None = None,
    corruptions: str | list[str] | None = None,
    severity: int = 5,
    family: str = "imagenet",
    frost_folder: str | None = None,
    seed: int = 0,
) -> SegmentationDomains | CorruptedSegmentation:
    """Any images with a label PNG each: CamVid, your own.

    Args:
        images: The folder of images. Its folders are the domains, unless ``table`` says otherwise.
        labels: The folder of label PNGs, under the names of the images (and in the same folders): numbers of classes,
            with 255 where a pixel does not count, or a colour per class.
        classes: Text file with a class per line: its name, the first is number 0; or its colour and its name, as in
            ``64 128 64  Tree``. Classes called ``void`` do not count, and those of one name are one.
        label_suffix: What label files have at the end of their names, as ``_L`` in CamVid's ``x_L.png`` of ``x.png``.
        table: A .csv with the columns ``image`` (path below ``images``) and ``domain``; images that it does not list
            are not shown.
        domains: Domains to show, in their usual order; None takes all but ``source_domain``: folders by name, those
            of a table as they come.
        source_domain: The domain whose images are those of the source domain, and no part of the stream.
        image_height: Height that images are resized to, their width in proportion; None leaves them. Labels stay as
            they are, and scores are brought to their size.
        num_images: Use only so many images of each domain, spread evenly over the order of names; None uses all.
        corruptions: Show all these images under corruptions instead: ``common``, ``validation``, a group such as
            ``weather``, or a list of names; each is a domain.
        severity: Of the corruptions, 1 to 5.
        family: Constants of the corruptions.
        frost_folder: The published frost textures; None generates textures.
        seed: Seed of the corruptions.

    Raises:
        FileNotFoundError: If a folder, a list or a file is missing; the message names it.
        ValueError: If a list or an argument is wrong.
    """
    image_folder, label_folder = Path(images).expanduser(), Path(labels).expanduser()
    for folder in (image_folder, label_folder):
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
    names, read = read_class_list(Path(classes).expanduser())
    found = _by_folder(image_folder) if table is None else _by_table(Path(table).expanduser(), image_folder)
    shown = [name for name in found if name != source_domain] if domains is None else domains
    shown = [shown] if isinstance(shown, str) else list(shown)
    for name in [*shown, *([source_domain] if source_domain else [])]:
        if name not in found:
            raise ValueError(f"{table or image_folder} has no domain {name!r}, but {', '.join(found)}")
    if not shown:
        raise ValueError(f"{table or image_folder} has no domain but the source's")

    def files(domain: str) -> SegmentedFiles:
        pairs = [
            Pair(image_folder / name, (label_folder / name).with_name(f"{Path(name).stem}{label_suffix}.png"))
            for name in found[domain]
        ]
        return SegmentedFiles(pairs, read, image_height, f"{image_folder.name}: {domain}")

    return segmentation_domains(
        "segmentation_folder", {name: files(name) for name in shown}, files(source_domain) if source_domain else None,
        names, {"image_height": image_height}, num_images=num_images, corruptions=corruptions, severity=severity,
        family=family, frost_folder=frost_folder, seed=seed,
    )  # fmt: skip


def _by_folder(folder: Path) -> dict[str, list[str]]:
    """Images of each folder in a folder, by name; of the folder itself, under its own name, if it has no folders."""
    inner = class_folders(folder)
    found = {name: [f"{name}/{image}" for image in image_names(folder / name)] for name in inner}
    if not inner:
        found = {folder.name: image_names(folder)}
    if empty := [name for name, images in found.items() if not images]:
        where = folder / empty[0] if inner else folder
        raise ValueError(f"{where} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    return found


def _by_table(table: Path, folder: Path) -> dict[str, list[str]]:
    """Images of each domain in a table, domains as they come, images by name.

    Raises:
        FileNotFoundError: If the table or an image that it lists is missing.
        ValueError: If it lacks a column, or lists nothing.
    """
    if not table.is_file():
        raise FileNotFoundError(f"there is no table at {table}")
    with table.open(newline="") as file:
        rows = csv.DictReader(file)
        if not {"image", "domain"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{table} must have the columns image and domain in its first line")
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(row["domain"], []).append(row["image"])
    if not found:
        raise ValueError(f"{table} lists no images")
    for images in found.values():
        for name in images:
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{table} lists {name}, and there is no such file in {folder}")
    return {domain: sorted(images) for domain, images in found.items()}
