"""Images in class folders: finding them, and saying what is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from tta_bench.datasets.files.class_names import IMAGENET, label_map
from tta_bench.datasets.files.decode import IMAGE_SUFFIXES
from tta_bench.datasets.files.image_files import Crop, ImageFiles

BESIDE = "images beside the folders"
_OF_THE_SYSTEM = ("thumbs.db", "desktop.ini")  # files that file managers leave in folders of images


def class_folders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, without hidden ones.

    Raises:
        FileNotFoundError: If the folder does not exist.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def some(names: Sequence[str], most: int = 10) -> str:
    """The first names, for a message.

    Example:
        >>> some(["a", "b", "c"], most=2)
        'a, b, ...'
    """
    return ", ".join([*names[:most], "..."] if len(names) > most else names) or "nothing"


class Found(NamedTuple):
    """The contents of a folder of class folders."""

    images: dict[str, list[str]]  # names of the images of each class, classes and names sorted
    # Numbers of files that are left out by suffix (".heic"), of folders without a class ("unknown/"), and ``BESIDE``.
    left_out: Counter[str]


def list_images(folder: Path) -> tuple[list[str], Counter[str]]:
    """Sorted names of the images in a folder, and the number of other files by suffix; hidden files are ignored.

    Folders are counted under the suffix ``/`` and not searched for images.
    """
    with os.scandir(folder) as entries:
        there = [entry for entry in entries if not entry.name.startswith(".")]
    names = {entry.name for entry in there if entry.name.lower().endswith(IMAGE_SUFFIXES)}
    others = (entry for entry in there if entry.name not in names and entry.name.lower() not in _OF_THE_SYSTEM)
    return sorted(names), Counter("/" if entry.is_dir() else _ending(entry.name) for entry in others)


def _ending(name: str) -> str:
    return Path(name).suffix.lower() or "without ending"


def find_images(folder: Path, only: Collection[str] | None = None) -> Found:
    """Names of the images in each class folder of a folder.

    Args:
        folder: Folder with one folder per class.
        only: Only these classes; other folders are left out, and so are classes without images. None uses all.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If there are no class folders, or ``only`` is None and a class folder has no images.
    """
    there = class_folders(folder)
    names = [name for name in there if only is None or name in only]
    if not names:
        raise ValueError(
            f"{folder} holds no class folders" + (f" of the given names, only {some(there)}" if there and only else "")
        )
    listed = {name: list_images(folder / name) for name in names}
    empty = [name for name, (images, _) in listed.items() if not images]
    left_out: Counter[str] = sum((others for _, others in listed.values()), Counter())
    if only is None and empty:  # an empty class, or not a class? The labels of all later classes depend on it
        raise ValueError(
            f"{folder / empty[0]} holds no images in a supported format ({', '.join(IMAGE_SUFFIXES)}): remove it, or "
            "list the classes in dataset.classes"
        )
    left_out.update(f"{name}/" for name in there if name not in listed)
    if loose := len(list_images(folder)[0]):
        left_out[BESIDE] = loose
    return Found({name: images for name, (images, _) in listed.items() if images}, left_out)


def left_out_facts(stream: Iterable[object], source: object = None) -> dict[str, dict[str, int]]:
    """Facts for a result about files and folders that are left out; empty if there are none.

    Args:
        stream: Images of each domain; only ``ImageFiles`` can leave files out.
        source: Images of the source domain.
    """
    found = {"left_out": _sum(stream), "left_out_of_source": _sum([source])}
    return {key: dict(sorted(counts.items())) for key, counts in found.items() if counts}


def left_out_told(data: Mapping[str, Any]) -> list[str]:
    """Sentences about what ``left_out_facts`` found, from a description of the data.

    Example:
        >>> left_out_told({"left_out": {".heic": 3, "unknown/": 1}})
        ['files and folders that are not read: 3 x .heic, 1 x unknown/']
    """
    found = []
    for key, whose in (("left_out", ""), ("left_out_of_source", " of the source images")):
        if counts := data.get(key):
            listed = [f"{number} x {name}" for name, number in sorted(counts.items(), key=lambda item: -item[1])]
            found.append(f"files and folders{whose} that are not read: {some(listed)}")
    return found


def _sum(images: Iterable[object]) -> Counter[str]:
    return sum((Counter(each.left_out) for each in images if isinstance(each, ImageFiles)), Counter())


def check_list(folder: Path, listed: Iterable[str]) -> None:
    """Reject a list of classes that matches only some of the folders: a name may be misspelt on either side.

    Raises:
        ValueError: If a class has no folder while a folder is not in the list.
    """
    there, classes = class_folders(folder), list(listed)
    missing = [name for name in classes if name not in there]
    unlisted = [name for name in there if name not in classes]
    if not missing or not unlisted:
        return
    near = [(name, match) for name in missing for match in get_close_matches(name, unlisted, n=1)]
    name, other = near[0] if near else (missing[0], None)
    hint = f"did you mean its folder {other!r}?" if other else f"the list lacks its folders {some(unlisted)}."
    raise ValueError(
        f"{folder} has no folder for the class {name!r} of dataset.classes; {hint} Correct the "
        f"name, or create an empty folder {name!r} if there are no images of this class"
    )


def check_same_classes(stream: object, source: object) -> None:
    """Refuse class folders of the stream and of the source whose labels mean different classes.

    Raises:
        ValueError: If both are class folders and their classes differ.
    """
    if not isinstance(stream, ImageFiles) or not isinstance(source, ImageFiles):
        return
    if stream.class_names != source.class_names:
        odd = sorted({*stream.class_names} ^ {*source.class_names})
        raise ValueError(
            f"{stream.folder} and {source.folder} do not have the same class folders ({some(odd)} only in one of "
            "them), so their labels would differ: list the classes in dataset.classes"
        )


def files_of(folder: Path, found: Found, labels: Mapping[str, int], crop: Crop) -> ImageFiles:
    """Create ``ImageFiles`` from the result of ``find_images``.

    Raises:
        ValueError: If there are none.
    """
    pairs = [(f"{name}/{image}", labels[name]) for name, images in found.images.items() for image in images]
    if not pairs:
        raise ValueError(f"{folder} holds no images of the given classes")
    names, numbers = zip(*pairs, strict=True)
    by_label: dict[int, str] = {}
    for name, label in labels.items():
        by_label.setdefault(label, name)  # of a class with two names, as ImageNet's have, the first
    class_names = [by_label[label] for label in sorted(by_label)]
    return ImageFiles(folder, names, numbers, crop, found.left_out, class_names)


def open_folder(folder: Path, classes: str | None, crop: Crop) -> ImageFiles:
    """Open all images in a folder of class folders; for ``classes`` see ``label_map``.

    Raises:
        FileNotFoundError: If the folder or the list of classes does not exist.
        ValueError: If there are no class folders or no images, or the list does not match the folders.
    """
    given = None if classes is None else label_map(classes)
    if given is not None and classes != IMAGENET:
        check_list(folder, given)
    found = find_images(folder, given)
    return files_of(folder, found, given or label_map(None, found.images), crop)
