"""Your own stream: images in the order of a table or of a folder of photos, with labels for all, some or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.datasets.base import UNLABELLED, CleanImages
from tta_bench.datasets.classification.image_domains import ImageDomains, OnBadImage, check_num_images, evenly
from tta_bench.datasets.files.class_folders import class_folders, files_of, find_images
from tta_bench.datasets.files.class_names import label_map
from tta_bench.datasets.files.image_files import Crop, ImageFiles, Interpolation, split_damaged
from tta_bench.datasets.files.image_list import DomainFrom, domains_from, list_photos, list_table


class ManifestDomains(ImageDomains):
    """Images with their own order of arrival.

    Args:
        files: All images in order of arrival, with label ``UNLABELLED`` for unlabelled images.
        domains: Domain of each image.
        times: Time of each image in seconds since 1970, nan if unknown; None if all are unknown.
        groups: Group of each image, None if it has none; empty without groups.
        source: Images of the source domain; None if there are none.
        facts: Further facts about the images for the result file.
    """

    def __init__(
        self,
        files: ImageFiles,
        domains: Sequence[str],
        times: np.ndarray | None,
        groups: Sequence[str | None],
        source: CleanImages | None,
        facts: Mapping[str, Any],
    ) -> None:
        names = list(dict.fromkeys(domains))
        position = {name: k for k, name in enumerate(names)}
        ids = np.array([position[name] for name in domains], dtype=np.int64)
        members = [np.flatnonzero(ids == k) for k in range(len(names))]
        images = {name: files.rows(rows) for name, rows in zip(names, members, strict=True)}
        super().__init__("manifest", images, source, facts)
        self.files, self._groups = images, list(groups)
        self._ids, self._times = ids, times
        self._members = dict(zip(names, members, strict=True))
        self._rows = np.empty(len(ids), dtype=np.int64)
        for rows in members:
            self._rows[rows] = np.arange(len(rows))

    def arrival_order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Domain (index in ``domains``), row and time of each image, (N,) each, in order of arrival."""
        return self._ids, self._rows, self._times

    def path(self, domain: str, index: int) -> str:
        """Path of an image as given in the table, relative to the folder of the table."""
        return self.files[domain].name(index)

    def group(self, domain: str, index: int) -> str | None:
        """Group of an image; None if it has none."""
        return self._groups[int(self._members[domain][index])] if self._groups else None


def manifest(
    *,
    file: str | None = None,
    images: str | None = None,
    source_images: str | None = None,
    classes: str | None = None,
    domain_from: DomainFrom | None = None,
    num_images: int | None = None,
    on_bad_image: OnBadImage = "fail",
    image_size: int | None = 224,
    resize: int | None = 256,
    interpolation: Interpolation = "bilinear",
) -> ManifestDomains:
    """Your own stream: images in the order of a table or of the times of photos, labelled or not.

    Args:
        file: A table (.csv with any delimiter, .tsv, .parquet if pyarrow is installed) with one row per image and the
            columns ``path`` (relative to the table) and optionally ``label``, ``domain``, ``time`` and ``group``. All
            values except ``path`` may be missing in any row: an image without a label is predicted but not scored.
        images: Instead of a table, a folder of photos without labels, including its subfolders. They arrive in the
            order of the time in their EXIF data if all have one, otherwise by name (``img9`` before ``img10``); the run
            says which.
        source_images: Images of the source domain, cropped in the same way, for the methods that need them: a folder
            of class folders, which are named like the labels, or a table or folder as above.
        classes: Meaning of the labels. None: class numbers of the model, from 0. ``imagenet``: WordNet ids or 0 to 999.
            The path of a text file: names, one per line, in the order of the model's classes.
        domain_from: Derive the domains from the time (``day``, ``week``, ``month``; the EXIF time if there is no column
            ``time``) or from the ``folder`` of each image, instead of the column ``domain``. Without either, all images
            are one domain.
        num_images: Use only this many images, evenly spaced in the stream; None uses all.
        on_bad_image: ``fail``: an image that cannot be read ends the run when it is needed. ``skip``: damaged files are
            detected when the data set is opened, left out of the stream and named in the result.
        image_size: Side of the centre crop; None keeps the images as they are (this requires ``resize=null`` and
            images of one size).
        resize: Length to which the shorter side is resized first; None leaves it unchanged.
        interpolation: Interpolation filter for resizing.

    Raises:
        FileNotFoundError: If the table, a folder or an image does not exist.
        ValueError: If a value of the table or an argument is wrong; the message names the line.
    """
    if bool(file) == bool(images):
        raise ValueError(
            "give dataset.file=photos.csv, a table with a column path, or dataset.images=a folder of photos"
        )
    crop = Crop(image_size, resize, interpolation)
    given = None if classes is None else label_map(classes)
    top = Path(str(file or images)).expanduser()
    if file and top.is_dir():
        raise ValueError(f"dataset.file={file} is a folder: write dataset.images={file}")
    found = list_table(top, given, crop) if file else list_photos(top, crop)
    if num_images is not None:
        check_num_images(num_images, len(found), str(top))
        found = found.rows(evenly(num_images, len(found)))
    facts: dict[str, Any] = {**found.facts, **crop.describe()}
    if given is not None:
        facts["classes"] = len(set(given.values()))
    if on_bad_image == "skip":
        intact, skipped = split_damaged(found.files)
        facts["skipped_images"] = {"number": len(skipped), "first": skipped[:10]}
        found = found.rows(intact)
    facts["labelled"] = int((found.files.labels != UNLABELLED).sum())
    domains = found.domains if domain_from is None else domains_from(domain_from, found)
    source = None if source_images is None else _source(Path(source_images).expanduser(), given, crop)
    return ManifestDomains(found.files, domains, found.seconds(), found.groups, source, facts)


def _source(place: Path, given: Mapping[str, int] | None, crop: Crop) -> CleanImages:
    """Images of the source domain; of a table or a flat folder, some or all may have no label."""
    if place.is_file():
        return list_table(place, given, crop).files
    folders = class_folders(place)
    if not folders:
        return list_photos(place, crop).files
    if given is None:
        for name in folders:
            if not name.isdecimal():
                raise ValueError(
                    f"{place} has a folder {name!r}, which is not a class number: name the classes of the model in "
                    "dataset.classes, a text file with a name per line, or give a folder without folders"
                )
        given = {name: int(name) for name in folders}
    return files_of(place, find_images(place, given), given, crop)
