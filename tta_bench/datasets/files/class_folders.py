"""Images in class folders: which files count, how they are cut to one size, and what a damaged one does."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from tta_bench.datasets.files.class_names import label_map

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")
Interpolation = Literal["bilinear", "bicubic"]
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
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
        ValueError: If the file is no image, is cut off or shows too few pixels; the message names it.
    """
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:  # a damaged PNG is a SyntaxError to Pillow
        raise ValueError(f"{path} is not a readable image: remove or replace it") from error
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
    """

    def __init__(self, folder: Path, names: Sequence[str], labels: Sequence[int], crop: Crop) -> None:
        self.folder, self.crop = folder, crop
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
        return ImageFiles(self.folder, [self.name(i) for i in indices], self.labels[indices].tolist(), self.crop)

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


def image_names(folder: Path) -> list[str]:
    """Names of the images in a folder, in order, without hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    return sorted(name for name in names if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."))


def find_images(folder: Path, only: Container[str] | None = None) -> dict[str, list[str]]:
    """Names of the images in each class folder of a folder, classes and names in order.

    Args:
        folder: Holds one folder per class.
        only: Only these classes; other folders are ignored, and so are classes without images. None takes all.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If there is no class folder, or without ``only`` one that holds no images.
    """
    names = [name for name in class_folders(folder) if only is None or name in only]
    if not names:
        raise ValueError(f"{folder} holds no class folders" + ("" if only is None else " of the given names"))
    found = {name: image_names(folder / name) for name in names}
    empty = [name for name, images in found.items() if not images]
    if only is None and empty:  # a class without images, or no class at all? The labels of all that follow it differ
        raise ValueError(
            f"{folder / empty[0]} holds no images ({', '.join(IMAGE_SUFFIXES)}): remove it, or name the classes in "
            "dataset.classes"
        )
    return {name: images for name, images in found.items() if images}


def files_of(folder: Path, found: Mapping[str, Sequence[str]], labels: Mapping[str, int], crop: Crop) -> ImageFiles:
    """The images that ``find_images`` found in a folder.

    Raises:
        ValueError: If there are none.
    """
    pairs = [(f"{name}/{image}", labels[name]) for name, images in found.items() for image in images]
    if not pairs:
        raise ValueError(f"{folder} holds no images of the given classes")
    names, numbers = zip(*pairs, strict=True)
    return ImageFiles(folder, names, numbers, crop)


def open_folder(folder: Path, classes: str | None, crop: Crop) -> ImageFiles:
    """All images in a folder of class folders; ``classes`` is described at ``label_map``.

    Raises:
        FileNotFoundError: If there is no such folder or list of classes.
        ValueError: If there is no class folder or no image.
    """
    given = None if classes is None else label_map(classes)
    found = find_images(folder, given)
    return files_of(folder, found, given or label_map(None, found), crop)


def without_damaged(images: ImageFiles) -> tuple[ImageFiles, list[str]]:
    """The images whose files are whole, and the paths below the folder of those left out.

    Raises:
        ValueError: If none is whole.
    """
    whole = np.array([is_whole(images.path(i)) for i in range(len(images))])
    if not whole.any():
        raise ValueError(f"none of the {len(images)} images in {images.folder} can be read")
    return images.rows(np.flatnonzero(whole)), [images.name(int(i)) for i in np.flatnonzero(~whole)]
