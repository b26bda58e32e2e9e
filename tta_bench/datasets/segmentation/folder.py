"""Your own images with label PNGs, in the layout of CamVid."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from tta_bench.datasets.files.class_folders import BESIDE, Found, class_folders, list_images
from tta_bench.datasets.files.decode import IMAGE_SUFFIXES
from tta_bench.datasets.files.label_maps import read_class_list
from tta_bench.datasets.segmentation.label_map_domains import (
    CorruptedSegmentation,
    Pair,
    SegmentationDomains,
    SegmentedFiles,
    segmentation_domains,
)
from tta_bench.files import existing, read_lines


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
    """Any images with one label PNG each, such as CamVid or your own.

    Args:
        images: The folder of images. Its folders are the domains, unless ``table`` assigns domains.
        labels: The folder of label PNGs, with the names (and subfolders) of the images: class numbers with 255 for
            ignored pixels, or one colour per class.
        classes: Text file with one class per line: its name, starting with class 0; or its colour and its name, as in
            ``64 128 64  Tree``. Classes called ``void`` are ignored, and lines with the same name are one class.
        label_suffix: Suffix of the label files' names, as ``_L`` in CamVid's ``x_L.png`` for ``x.png``.
        table: A .csv file with the columns ``image`` (path relative to ``images``) and ``domain``; unlisted images
            are not used.
        domains: Domains to use, in their usual order; None uses all except ``source_domain``, folders sorted by name
            and domains of a table in order of appearance.
        source_domain: The domain that is used as the source domain and not part of the stream.
        image_height: Height to which images are resized, keeping the aspect ratio; None leaves them unchanged. Labels
            keep their size, and scores are resized to match.
        num_images: Use only this many images of each domain, evenly spaced in name order; None uses all.
        corruptions: Use all these images under corruptions instead: ``common``, ``validation``, a group such as
            ``weather``, or a list of names; each is a domain.
        severity: Severity of the corruptions, 1 to 5.
        family: Constants of the corruptions.
        frost_folder: The published frost textures; None generates textures.
        seed: Seed of the corruptions.

    Raises:
        FileNotFoundError: If a folder, a list or a file is missing; the message names it.
        ValueError: If a list or an argument is wrong.
    """
    image_folder = existing("dataset.images", images, "folder")
    label_folder = existing("dataset.labels", labels, "folder")
    names, read = read_class_list(existing("dataset.classes", classes, "file"))
    if table is None:
        listed = _by_folder(image_folder)
    else:
        listed = _by_table(existing("dataset.table", table, "file"), image_folder)
    found = listed.images
    shown = [name for name in found if name != source_domain] if domains is None else domains
    shown = [shown] if isinstance(shown, str) else list(shown)
    for name in [*shown, *([source_domain] if source_domain else [])]:
        if name not in found:
            raise ValueError(f"{table or image_folder} has no domain {name!r}; it has {', '.join(found)}")
    if not shown:
        raise ValueError(f"{table or image_folder} has no domains other than the source domain")

    def files(domain: str) -> SegmentedFiles:
        pairs = [
            Pair(image_folder / name, (label_folder / name).with_name(f"{Path(name).stem}{label_suffix}.png"))
            for name in found[domain]
        ]
        return SegmentedFiles(pairs, read, image_height, f"{image_folder.name}: {domain}")

    facts = {"image_height": image_height, **({"left_out": dict(listed.left_out)} if listed.left_out else {})}
    return segmentation_domains(
        "segmentation_folder", {name: files(name) for name in shown}, files(source_domain) if source_domain else None,
        names, facts, num_images=num_images, corruptions=corruptions, severity=severity,
        family=family, frost_folder=frost_folder, seed=seed,
    )  # fmt: skip


def _by_folder(folder: Path) -> Found:
    """Sorted images of each subfolder; of the folder itself, under its own name, if it has no subfolders."""
    inner = class_folders(folder)
    listed = {name: list_images(folder / name) for name in inner} or {folder.name: list_images(folder)}
    if empty := [name for name, (images, _) in listed.items() if not images]:
        where = folder / empty[0] if inner else folder
        raise ValueError(f"{where} holds no images in a supported format ({', '.join(IMAGE_SUFFIXES)})")
    left_out: Counter[str] = sum((others for _, others in listed.values()), Counter())
    if inner and (loose := len(list_images(folder)[0])):
        left_out[BESIDE] = loose
    images = {name: [f"{name}/{image}" if inner else image for image in here] for name, (here, _) in listed.items()}
    return Found(images, left_out)


def _by_table(table: Path, folder: Path) -> Found:
    """Images of each domain in a table, domains in order of appearance, images sorted by name.

    Raises:
        FileNotFoundError: If the table or a listed image is missing.
        ValueError: If a column is missing, or no images are listed.
    """
    lines = read_lines(table, "table")
    if not lines:
        raise ValueError(f"{table} is empty: it must have the columns image and domain")
    header, *rows = csv.reader(lines)
    columns = [name.strip() for name in header]
    if not {"image", "domain"} <= set(columns):
        raise ValueError(
            f"{table} must have the columns image and domain in its first line, separated by commas, but has: "
            f"{', '.join(map(repr, columns))}"
        )
    found: dict[str, list[str]] = {}
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{table} has {len(columns)} columns, but {len(row)} values in {','.join(row)!r}")
        values = dict(zip(columns, map(str.strip, row), strict=True))
        found.setdefault(values["domain"], []).append(values["image"])
    if not found:
        raise ValueError(f"{table} lists no images")
    for images in found.values():
        for name in images:
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{table} lists {name}, which does not exist in {folder}")
    return Found({domain: sorted(images) for domain, images in found.items()}, Counter())
