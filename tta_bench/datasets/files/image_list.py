"""Images in order of arrival, with labels, domains, times and groups: as a table or a folder of photos lists them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tta_bench.datasets.base import UNLABELLED
from tta_bench.datasets.files.class_folders import list_images
from tta_bench.datasets.files.image_files import Crop, ImageFiles
from tta_bench.datasets.files.photo_times import exif_time, natural_key, read_time, seconds
from tta_bench.datasets.files.table import Table, read_table
from tta_bench.suggestions import did_you_mean

DomainFrom = Literal["day", "week", "month", "folder"]
COLUMNS = ("label", "domain", "time", "group")
ALL, OTHERS = "all", "others"  # domain of all images if none has one, and of images without one otherwise
LARGEST = 2**31


@dataclass(frozen=True)
class ImageList:
    """N images in order of arrival, with what is known of each.

    Attributes:
        files: The images, with label ``UNLABELLED`` where there is none.
        domains: Domain of each image.
        times: Time of each image, None if unknown.
        groups: Group of each image, None if it has none; empty without groups.
        facts: Facts about the list for the result file.
    """

    files: ImageFiles
    domains: list[str]
    times: list[datetime | None]
    groups: list[str | None]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, indices: np.ndarray) -> ImageList:
        """Only these images, in this order."""
        return ImageList(
            self.files.rows(indices),
            [self.domains[i] for i in indices],
            [self.times[i] for i in indices],
            [self.groups[i] for i in indices] if self.groups else [],
            self.facts,
        )

    def seconds(self) -> np.ndarray | None:
        """Time of each image (N,) in seconds since 1970, nan if unknown; None if all are unknown."""
        if all(time is None for time in self.times):
            return None
        return np.array([np.nan if time is None else seconds(time) for time in self.times])


def list_table(file: Path, given: Mapping[str, int] | None, crop: Crop) -> ImageList:
    """The images that a table lists, in the order of its rows.

    Args:
        file: A table with the column ``path``, relative to its folder, and any of ``COLUMNS``.
        given: Label of each class name; None if the labels are numbers.
        crop: How the images are cropped.

    Raises:
        FileNotFoundError: If the table or an image does not exist.
        ValueError: If the table or a value in it is wrong; the message names the line.
    """
    # A class or a domain may be called "none" or "na"; if classes are numbers, such a word is not a class.
    table = read_table(file, "path", COLUMNS, keep=("domain", *(["label"] if given else [])))
    names = [str(name) for name in table.columns["path"]]
    if missing := [k for k, name in enumerate(names) if not (file.parent / name).is_file()]:
        more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        raise FileNotFoundError(
            f"{file}, {table.places[missing[0]]}: there is no image {names[missing[0]]} in {file.parent}{more}"
        )
    labels = _labels(table, given)
    _check_repeated(table, names, labels)
    domains = _domains(table)
    times = _times(table)
    facts: dict[str, Any] = {"order_of_images": "rows of the table"}
    if table.unused:
        facts["unused_columns"] = table.unused
    groups = table.columns.get("group", [])
    return ImageList(ImageFiles(file.parent, names, labels, crop), domains, times, groups, facts)


def list_photos(folder: Path, crop: Crop) -> ImageList:
    """All images below a folder without labels, by EXIF time if all have one, otherwise by name.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If it holds no images.
    """
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
    known = [seconds(time) for time in times if time is not None]
    if len(known) == len(names):
        order, by_time = "EXIF times", np.argsort(known, kind="stable")
        names, times = [names[k] for k in by_time], [times[k] for k in by_time]
    else:
        lack = f"{len(names) - len(known)} of {len(names)} lack one"
        order = "names (img9 before img10), not of EXIF times: "
        order += lack if known else "no image has a time in its EXIF data"
    files = ImageFiles(folder, names, [UNLABELLED] * len(names), crop, left_out)
    facts = {"order_of_images": order, **({"left_out": dict(sorted(left_out.items()))} if left_out else {})}
    return ImageList(files, [ALL] * len(names), times, [], facts)


def domains_from(kind: DomainFrom, found: ImageList) -> list[str]:
    """Domain of each image, derived from its time or its folder.

    Raises:
        ValueError: If the time of an image is not known, or a folder cannot be the name of a domain.
    """
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


def _check_repeated(table: Table, names: list[str], labels: list[int]) -> None:
    """An image may arrive again, but with the same label."""
    first: dict[str, int] = {}
    for k, name in enumerate(names):
        before = first.setdefault(name, k)
        if labels[before] != labels[k]:
            texts = [table.columns["label"][row] or "none" for row in (before, k)]
            raise ValueError(
                f"{table.path}, {table.places[k]}: {name} has the label {texts[1]}, but {texts[0]} in "
                f"{table.places[before]}"
            )


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
