"""Your own stream: images in the order of a table or of a folder of photos, with labels for all, some or none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tta_bench.datasets.base import UNLABELLED, CleanImages
from tta_bench.datasets.classification.image_domains import ImageDomains, OnBadImage
from tta_bench.datasets.files.class_folders import (
    Crop,
    ImageFiles,
    Interpolation,
    class_folders,
    files_of,
    find_images,
    is_whole,
    list_images,
)
from tta_bench.datasets.files.class_names import label_map
from tta_bench.datasets.files.photo_times import exif_time, natural_key, read_time, seconds
from tta_bench.datasets.files.table import Table, read_table
from tta_bench.suggestions import did_you_mean

DomainFrom = Literal["day", "week", "month", "folder"]
COLUMNS = ("label", "domain", "time", "group")
ALL, OTHERS = "all", "others"  # domain of all images if none has one, and of images without one otherwise
LARGEST = 2**31


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
        ids = np.array([names.index(name) for name in domains], dtype=np.int64)
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
    classes: str | None = None,
    domain_from: DomainFrom | None = None,
    num_images: int | None = None,
    image_size: int | None = 224,
    resize: int | None = 256,
    interpolation: Interpolation = "bilinear",
    source_images: str | None = None,
    on_bad_image: OnBadImage = "fail",
) -> ManifestDomains:
    """Your own stream: images in the order of a table or of the times of photos, labelled or not.

    Args:
        file: A table (.csv with any delimiter, .tsv, .parquet if pyarrow is installed) with one row per image and the
            columns ``path`` (relative to the table) and optionally ``label``, ``domain``, ``time`` and ``group``. All
            values except ``path`` may be missing in any row: an image without a label is predicted but not scored.
        images: Instead of a table, a folder of photos without labels, including its subfolders. They arrive in the
            order of the time in their EXIF data if all have one, otherwise by name (``img9`` before ``img10``); the run
            says which.
        classes: Meaning of the labels. None: class numbers of the model, from 0. ``imagenet``: WordNet ids or 0 to 999.
            The path of a text file: names, one per line, in the order of the model's classes.
        domain_from: Derive the domains from the time (``day``, ``week``, ``month``; the EXIF time if there is no column
            ``time``) or from the ``folder`` of each image, instead of the column ``domain``. Without either, all images
            are one domain.
        num_images: Use only this many images, evenly spaced in the stream; None uses all.
        image_size: Side of the centre crop; None keeps the images as they are (this requires ``resize=null`` and
            images of one size).
        resize: Length to which the shorter side is resized first; None leaves it unchanged.
        interpolation: Interpolation filter for resizing.
        source_images: Images of the source domain, cropped in the same way, for the methods that need them: a folder
            of class folders, which are named like the labels, or a table or folder as above.
        on_bad_image: ``fail``: an image that cannot be read ends the run when it is needed. ``skip``: damaged files are
            detected when the data set is opened, left out of the stream and named in the result.

    Raises:
        FileNotFoundError: If the table, a folder or an image does not exist.
        ValueError: If a value of the table or an argument is wrong; the message names the line.
    """
    if (file is None) == (images is None):
        raise ValueError(
            "give dataset.file=photos.csv, a table with a column path, or dataset.images=a folder of photos"
        )
    crop = Crop(image_size, resize, interpolation)
    given = None if classes is None else label_map(classes)
    top = Path(str(file or images)).expanduser()
    if file is not None and top.is_dir():
        raise ValueError(f"dataset.file={file} is a folder: write dataset.images={file}")
    found = _listed(top, given, crop) if file is not None else _photos(top, crop)
    if num_images is not None:
        if not 1 <= num_images <= len(found):
            raise ValueError(f"dataset.num_images must be in 1..{len(found)}, the number of images; got {num_images}")
        found = found.rows(np.arange(num_images) * len(found) // num_images)
    facts: dict[str, Any] = {"labelled": 0, **found.facts, **crop.describe()}
    if given is not None:
        facts["classes"] = len(set(given.values()))
    if on_bad_image == "skip":
        whole = np.array([is_whole(found.files.path(i)) for i in range(len(found))])
        if not whole.any():
            raise ValueError(f"none of the {len(found)} images of {top} can be read")
        skipped = [found.files.name(int(i)) for i in np.flatnonzero(~whole)]
        facts["skipped_images"] = {"number": len(skipped), "first": skipped[:10]}
        found = found.rows(np.flatnonzero(whole))
    facts["labelled"] = int((found.files.labels != UNLABELLED).sum())
    domains = found.domains if domain_from is None else _domains_from(domain_from, found)
    source = None if source_images is None else _source(Path(source_images).expanduser(), given, crop)
    known = [] if all(time is None for time in found.times) else found.times
    times = np.array([np.nan if time is None else seconds(time) for time in known]) if known else None
    return ManifestDomains(found.files, domains, times, found.groups, source, facts)


class _Listed:
    """The contents of a table or a folder, in order."""

    def __init__(
        self,
        files: ImageFiles,
        domains: list[str],
        times: list[datetime | None],
        groups: list[str | None],
        facts: dict[str, Any],
    ) -> None:
        self.files, self.domains, self.times, self.groups, self.facts = files, domains, times, groups, facts

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, indices: np.ndarray) -> _Listed:
        """Only these images."""
        own = [[values[i] for i in indices] for values in (self.domains, self.times)]
        groups = [self.groups[i] for i in indices] if self.groups else []
        return _Listed(self.files.rows(indices), own[0], own[1], groups, self.facts)


def _listed(file: Path, given: Mapping[str, int] | None, crop: Crop) -> _Listed:
    # A class or a domain may be called "none" or "na"; if classes are numbers, such a word is not a class.
    table = read_table(file, "path", COLUMNS, keep=("domain", *(["label"] if given else [])))
    names = [str(name) for name in table.columns["path"]]
    if missing := [k for k, name in enumerate(names) if not (file.parent / name).is_file()]:
        more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        raise FileNotFoundError(
            f"{file}, {table.places[missing[0]]}: there is no image {names[missing[0]]} in {file.parent}{more}"
        )
    labels = _labels(table, given)
    domains = _domains(table)
    times = _times(table)
    facts: dict[str, Any] = {"order_of_images": "rows of the table"}
    if table.unused:
        facts["unused_columns"] = table.unused
    groups = table.columns.get("group", [])
    return _Listed(ImageFiles(file.parent, names, labels, crop), domains, times, groups, facts)


def _labels(table: Table, given: Mapping[str, int] | None) -> list[int]:
    texts = table.columns.get("label", [None] * len(table))
    labels = []
    for text, place in zip(texts, table.places, strict=True):
        if text is None:
            labels.append(UNLABELLED)
        elif given is not None and text in given:
            labels.append(given[text])
        elif given is not None:
            names = list(given)
            hint = did_you_mean(text, names if len(names) <= 20 else [], more=names, listed="its classes are")
            raise ValueError(f"{table.path}, {place}: the label {text!r} is not a class of dataset.classes{hint}")
        else:
            labels.append(_class_number(text, table.path, place))
    return labels


def _class_number(text: str, path: Path, place: str) -> int:
    try:
        number = float(text)  # pandas writes 3 as 3.0 where other labels are missing
    except ValueError:
        number = np.nan
    if not number == number // 1 or not 0 <= number < LARGEST:
        raise ValueError(
            f"{path}, {place}: the label {text!r} is not a class number (0, 1, ...): leave it empty if there is none, "
            "or name the classes of the model in dataset.classes, a text file with a name per line"
        )
    return int(number)


def _domains(table: Table) -> list[str]:
    texts = table.columns.get("domain", [None] * len(table))
    default = OTHERS if any(texts) else ALL
    for text, place in zip(texts, table.places, strict=True):
        _check_domain(text or default, f"{table.path}, {place}")
    return [text or default for text in texts]


def _check_domain(name: str, place: str) -> None:
    if not set(name).isdisjoint(";=\n\r"):
        raise ValueError(
            f"{place}: a domain cannot be called {name!r}: leave out semicolons, equals signs and new lines"
        )


def _times(table: Table) -> list[datetime | None]:
    times: list[datetime | None] = []
    for text, place in zip(table.columns.get("time", [None] * len(table)), table.places, strict=True):
        try:
            times.append(None if text is None else read_time(text))
        except ValueError as error:
            raise ValueError(f"{table.path}, {place}: {error}") from None
    if len({time.tzinfo is None for time in times if time}) > 1:
        raise ValueError(f"{table.path}: some times have a zone and some do not: write all of them in one way")
    return times


def _photos(folder: Path, crop: Crop) -> _Listed:
    """All images below a folder, by time or by name."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    names, left_out = list_images(folder)
    for inner, _, _ in os.walk(folder):
        below = Path(inner).relative_to(folder)
        if below.parts and not any(part.startswith(".") for part in below.parts):
            more, others = list_images(Path(inner))
            names += [f"{below.as_posix()}/{name}" for name in more]
            left_out.update(others)
    left_out.pop("/", None)  # folders were searched
    if not names:
        raise ValueError(f"{folder} holds no images that are read")
    names.sort(key=natural_key)
    times = [exif_time(folder / name) for name in names]
    unknown = times.count(None)
    if unknown:
        told = (
            "no image has a time in its EXIF data" if unknown == len(names) else f"{unknown} of {len(names)} lack one"
        )
        order = f"names (img9 before img10), not of EXIF times: {told}"
    else:
        order = "EXIF times"
        by_time = sorted(range(len(names)), key=lambda k: seconds(times[k]))  # type: ignore[arg-type]  # all are known
        names, times = [names[k] for k in by_time], [times[k] for k in by_time]
    files = ImageFiles(folder, names, [UNLABELLED] * len(names), crop, left_out)
    facts = {"order_of_images": order, **({"left_out": dict(sorted(left_out.items()))} if left_out else {})}
    return _Listed(files, [ALL] * len(names), times, [], facts)


def _domains_from(kind: DomainFrom, found: _Listed) -> list[str]:
    if kind == "folder":
        names = [Path(found.files.name(i)).parent.as_posix() for i in range(len(found))]
        for name in set(names):
            _check_domain(name, "dataset.domain_from=folder")
        return [ALL if name == "." else name for name in names]
    times = found.times
    if all(time is None for time in times):
        times = [exif_time(found.files.path(i)) for i in range(len(found))]
    if None in times:
        raise ValueError(
            f"dataset.domain_from={kind} needs the time of every image, and {found.files.name(times.index(None))} has "
            "none: give it in the column time"
        )
    form = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}[kind]
    return [time.strftime(form) for time in times if time]


def _source(place: Path, given: Mapping[str, int] | None, crop: Crop) -> CleanImages:
    """Images of the source domain; of a table or a flat folder, some or all may have no label."""
    if place.is_file():
        return _listed(place, given, crop).files
    folders = class_folders(place)
    if not folders:
        return _photos(place, crop).files
    if given is None:
        for name in folders:
            if not name.isdecimal():
                raise ValueError(
                    f"{place} has a folder {name!r}, which is not a class number: name the classes of the model in "
                    "dataset.classes, a text file with a name per line, or give a folder without folders"
                )
        given = {name: int(name) for name in folders}
    return files_of(place, find_images(place, given), given, crop)
