"""Images in class folders: which files count, how they are cut to one size, and what a damaged one does."""

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
# First and last bytes of a whole file of the two common formats.
_MARKS = ((b"\xff\xd8\xff", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"))


@dataclass(frozen=True)
class Crop:
    """How an image of any size becomes a square: resize its shorter side, cut out the centre.

    Sizes and offsets are rounded as in torchvision's ``Resize`` and ``CenterCrop``.

    Args:
        size: Side of the square in pixels; None keeps images as they are.
        resize: Length in pixels that the shorter side is brought to first; None leaves it.
        interpolation: Filter of the resizing, always with antialiasing.

    Raises:
        ValueError: If a size is below 1, or larger than ``resize``.
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
        """Resize and cut.

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
                f"has {width}x{height} pixels, too few for a centre of {self.size}: set dataset.resize or a smaller "
                "dataset.image_size"
            )
        left, top = (round((side - self.size) / 2) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))

    def describe(self) -> dict[str, Any]:
        """The three values, as they are called in a configuration."""
        return {"image_size": self.size, "resize": self.resize, "interpolation": self.interpolation}


def read_image(path: Path, crop: Crop) -> np.ndarray:
    """Decode and cut one image: (H, W, 3) uint8, RGB.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file cannot be decoded (see ``read_rgb``) or shows too few pixels; the message names it.
    """
    image = read_rgb(path)
    try:
        return np.asarray(crop(image))
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def is_whole(path: Path) -> bool:
    """Whether a file is an image that was not cut off.

    A JPEG or PNG with the right first and last bytes is trusted, which costs microseconds; any other file is decoded.
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
    """Labelled images below a folder, read when they are asked for.

    Args:
        folder: What the names start from.
        names: Path of each image below the folder.
        labels: Label of each image.
        crop: How they are cut.
        left_out: What else lies in the folder, as ``Found`` has it.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        labels: Sequence[int],
        crop: Crop,
        left_out: Mapping[str, int] | None = None,
    ) -> None:
        self.folder, self.crop, self.left_out = folder, crop, dict(left_out or {})
        # As bytes in one array: loader processes share it, whereas a list of strings is slowly copied into each.
        self._names = np.array([os.fsencode(name) for name in names])
        self.labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        return read_image(self.path(index), self.crop)

    def name(self, index: int) -> str:
        """Path of image ``index`` below the folder."""
        return os.fsdecode(self._names[index])

    def path(self, index: int) -> Path:
        """Where image ``index`` lies."""
        return self.folder / self.name(index)

    def rows(self, indices: np.ndarray) -> ImageFiles:
        """Only these images, in this order."""
        names = [self.name(i) for i in indices]
        return ImageFiles(self.folder, names, self.labels[indices].tolist(), self.crop, self.left_out)

    def describe(self) -> str:
        """Folder name, numbers of classes and images, and the size they are cut to."""
        size = f"cut to {self.crop.size}" if self.crop.size else "as they are"
        return f"{self.folder.name} ({len(np.unique(self.labels))} classes, {len(self)} images, {size})"


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, in order, without hidden ones.

    Raises:
        FileNotFoundError: If there is no such folder.
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
    """What lies in a folder of class folders."""

    images: dict[str, list[str]]  # names of the images of each class, classes and names in order
    # What is not shown: numbers of files by ending (".heic"), of folders of no class ("unknown/"), and ``BESIDE``.
    left_out: Counter[str]


def list_images(folder: Path) -> tuple[list[str], Counter[str]]:
    """Names of the images in a folder, in order, and the number of other files by ending; hidden ones do not count.

    A folder in it counts as an ending ``/``: images in there are not looked for.
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
        folder: Holds one folder per class.
        only: Only these classes; other folders are left out, and so are classes without images. None takes all.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If there is no class folder, or without ``only`` one that holds no images.
    """
    there = class_folders(folder)
    names = [name for name in there if only is None or name in only]
    if not names:
        raise ValueError(
            f"{folder} holds no class folders" + (f" of the given names, but: {some(there)}" if there and only else "")
        )
    listed = {name: list_images(folder / name) for name in names}
    empty = [name for name, (images, _) in listed.items() if not images]
    left_out: Counter[str] = sum((others for _, others in listed.values()), Counter())
    if only is None and empty:  # a class without images, or no class at all? The labels of all that follow it differ
        raise ValueError(
            f"{folder / empty[0]} holds no images that are read ({', '.join(IMAGE_SUFFIXES)}): remove it, or name the "
            "classes in dataset.classes"
        )
    left_out.update(f"{name}/" for name in there if name not in listed)
    if loose := len(list_images(folder)[0]):
        left_out[BESIDE] = loose
    return Found({name: images for name, (images, _) in listed.items() if images}, left_out)


def left_out_facts(stream: Iterable[object], source: object = None) -> dict[str, dict[str, int]]:
    """What a result says of files and folders that are not shown; nothing, if there are none.

    Args:
        stream: Images of each domain; only ``ImageFiles`` leave something out.
        source: Images of the source domain.
    """
    found = {"left_out": _sum(stream), "left_out_of_source": _sum([source])}
    return {key: dict(sorted(counts.items())) for key, counts in found.items() if counts}


def _sum(images: Iterable[object]) -> Counter[str]:
    return sum((Counter(each.left_out) for each in images if isinstance(each, ImageFiles)), Counter())


def check_list(folder: Path, listed: Iterable[str]) -> None:
    """Refuse a list of classes that fits the folders of a folder in part: a name may be misspelt on either side.

    Raises:
        ValueError: If a class has no folder while there is a folder that is no class.
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
        f"name, or make an empty folder {name!r} if there are no images of this class"
    )


def files_of(folder: Path, found: Found, labels: Mapping[str, int], crop: Crop) -> ImageFiles:
    """The images that ``find_images`` found in a folder.

    Raises:
        ValueError: If there are none.
    """
    pairs = [(f"{name}/{image}", labels[name]) for name, images in found.images.items() for image in images]
    if not pairs:
        raise ValueError(f"{folder} holds no images of the given classes")
    names, numbers = zip(*pairs, strict=True)
    return ImageFiles(folder, names, numbers, crop, found.left_out)


def open_folder(folder: Path, classes: str | None, crop: Crop) -> ImageFiles:
    """All images in a folder of class folders; ``classes`` is described at ``label_map``.

    Raises:
        FileNotFoundError: If there is no such folder or list of classes.
        ValueError: If there is no class folder or no image, or the list does not fit the folders.
    """
    given = None if classes is None else label_map(classes)
    if given is not None and classes != IMAGENET:
        check_list(folder, given)
    found = find_images(folder, given)
    return files_of(folder, found, given or label_map(None, found.images), crop)


def without_damaged(images: ImageFiles) -> tuple[ImageFiles, list[str]]:
    """The images whose files are whole, and the paths below the folder of those left out.

    Raises:
        ValueError: If none is whole.
    """
    whole = np.array([is_whole(images.path(i)) for i in range(len(images))])
    if not whole.any():
        raise ValueError(f"none of the {len(images)} images in {images.folder} can be read")
    return images.rows(np.flatnonzero(whole)), [images.name(int(i)) for i in np.flatnonzero(~whole)]
