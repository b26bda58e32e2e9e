"""Labelled image files: cropping them to one size, and handling damaged ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from tta_bench.datasets.files.decode import read_rgb

Interpolation = Literal["bilinear", "bicubic"]
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
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


def split_damaged(images: ImageFiles) -> tuple[np.ndarray, list[str]]:
    """Find damaged files: the indices (N,) of the intact images, and the relative paths of the damaged ones.

    Raises:
        ValueError: If all are damaged.
    """
    whole = np.array([is_whole(images.path(i)) for i in range(len(images))])
    if not whole.any():
        raise ValueError(f"none of the {len(images)} images in {images.folder} can be read")
    return np.flatnonzero(whole), [images.name(int(i)) for i in np.flatnonzero(~whole)]
