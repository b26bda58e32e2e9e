"""Images in class folders: finding files, cropping them to one size, and handling damaged ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from tta_bench.datasets.files.class_names import IMAGENET, label_map
from tta_bench.datasets.files.decode import IMAGE_SUFFIXES, read_rgb

Interpolation = Literal["bilinear", "bicubic"]
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
BESIDE = "images beside the folders"
_OF_THE_SYSTEM = ("thumbs.db", "desktop.ini")  # files that file managers leave in folders of images
# First and last bytes of a complete file of the two common formats.
_MARKS = ((b"\xff\xd8\xff", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"))


@dataclass(frozen=True)
class Crop:
    """Resize the shorter side of an image and crop its centre to a square.

    Sizes and offsets are rounded as in torchvision's ``Resize`` and ``CenterCrop``.

    Args:
        size: Side of the square in pixels; None keeps images as they are.
        resize: Length in pixels to which the shorter side is resized first; None leaves it unchanged.
        interpolation: Interpolation filter for resizing, always with antialiasing.

    Raises:
        ValueError: If a size is below 1, or ``size`` is larger than ``resize``.
    """

    size: int | None = None
    resize: int | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        for key, value in (("image_size", self.size), ("resize", self.resize)):
            if value is not None and value < 1:
                raise ValueError(f"dataset.{key} must be at least 1, got {value}")
        if self.resize is not None and (self.size is None or self.size > self.resize):
            raise ValueError(
                f"dataset.image_size must be given and at most dataset.resize ({self.resize}), got {self.size}"
            )

    def __call__(self, image: Image.Image) -> Image.Image:
        """Resize and crop.

        Raises:
            ValueError: If the image is smaller than the square.
        """
        if self.resize is not None:
            width, height = (int(self.resize * side / min(image.size)) for side in image.size)
            image = image.resize((width, height), _FILTERS[self.interpolation])
        if self.size is None:
            return image
        if min(image.size) < self.size:
            width, height = image.size
            raise ValueError(
                f"has {width}x{height} pixels, too few for a centre crop of {self.size}: set dataset.resize or a "
                "smaller dataset.image_size"
            )
        left, top = (round((side - self.size) / 2) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))

    def describe(self) -> dict[str, Any]:
        """The three values, under their configuration keys."""
        return {"image_size": self.size, "resize": self.resize, "interpolation": self.interpolation}


def read_image(path: Path, crop: Crop) -> np.ndarray:
    """Decode and crop one image: (H, W, 3) uint8, RGB.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file cannot be decoded (see ``read_rgb``) or is too small; the message names it.
    """
    image = read_rgb(path)
    try:
        return np.asarray(crop(image))
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def is_whole(path: Path) -> bool:
    """Whether a file is a complete image.

    A JPEG or PNG with the right first and last bytes is trusted, which takes microseconds; other files are decoded.
    """
    with path.open("rb") as file:
        head = file.read(8)
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8))
        tail = file.read()
    if any(head.startswith(first) and tail.endswith(last) for first, last in _MARKS):
        return True
    try:
        read_image(path, Crop())
    except ValueError:
        return False
    return True


class ImageFiles:
    """Labelled images below a folder, read on demand.

    Args:
        folder: Folder to which the names are relative.
        names: Path of each image, relative to the folder.
        labels: Label of each image.
        crop: How they are cropped.
        left_out: Numbers of files and folders that are left out, as in ``Found``.
        class_names: Names of the classes 0, 1, ..., including those without images.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        labels: Sequence[int],
        crop: Crop,
        left_out: Mapping[str, int] | None = None,
        class_names: Sequence[str] = (),
    ) -> None:
        self.folder, self.crop, self.left_out = folder, crop, dict(left_out or {})
        self.class_names = tuple(class_names)
        # As bytes in one array: worker processes share it, whereas a list of strings is slowly copied into each.
        self._names = np.array([os.fsencode(name) for name in names])
        self.labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes, including those without images."""
        return len(self.class_names)

    def __getitem__(self, index: int) -> np.ndarray:
        return read_image(self.path(index), self.crop)

    def name(self, index: int) -> str:
        """Path of image ``index``, relative to the folder."""
        return os.fsdecode(self._names[index])

    def path(self, index: int) -> Path:
        """Path of image ``index``."""
        return self.folder / self.name(index)

    def rows(self, indices: np.ndarray) -> ImageFiles:
        """Only these images, in this order."""
        names = [self.name(i) for i in indices]
        labels = self.labels[indices].tolist()
        return ImageFiles(self.folder, names, labels, self.crop, self.left_out, self.class_names)

    def describe(self) -> str:
        """Folder name, numbers of classes and images, and their size after cropping."""
        size = f"cut to {self.crop.size}" if self.crop.size else "as they are"
        return f"{self.folder.name} ({len(np.unique(self.labels))} classes, {len(self)} images, {size})"


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


def split_damaged(images: ImageFiles) -> tuple[np.ndarray, list[str]]:
    """Find damaged files: the indices (N,) of the intact images, and the relative paths of the damaged ones.

    Raises:
        ValueError: If all are damaged.
    """
    whole = np.array([is_whole(images.path(i)) for i in range(len(images))])
    if not whole.any():
        raise ValueError(f"none of the {len(images)} images in {images.folder} can be read")
    return np.flatnonzero(whole), [images.name(int(i)) for i in np.flatnonzero(~whole)]
