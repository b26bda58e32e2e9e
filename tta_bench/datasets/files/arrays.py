"""Clean labelled images on disk: an array file, a folder of class folders, or CIFAR as published."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.datasets.base import CleanImages
from tta_bench.datasets.files.cifar_binary import CifarBinary, is_cifar_binary
from tta_bench.datasets.files.class_folders import open_folder
from tta_bench.datasets.files.image_files import Crop
from tta_bench.files import existing


class ArrayImages:
    """Images in a ``.npz`` file, or in a ``.npy`` file with the labels in another.

    Args:
        images: Path of the file. A ``.npz`` holds ``<split>_images`` and ``<split>_labels``, or ``images`` and
            ``labels``. Images are uint8, of shape (N, H, W, 3) or (N, 3, H, W).
        labels: Path of the ``.npy`` file of labels; only for a ``.npy`` file of images.
        split: Split of a ``.npz`` file to read.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the file lacks the arrays or they have another type or shape.
    """

    def __init__(self, images: Path, labels: Path | None = None, *, split: str = "test") -> None:
        self.path = images
        if images.suffix == ".npz":
            pixels, classes = _read(images, split)
        elif labels is None:
            raise ValueError(f"{images} has no labels: set dataset.labels to the .npy file that holds them")
        else:
            pixels, classes = _read(images), _read(labels)
        if pixels.ndim != 4 or pixels.dtype != np.uint8 or 3 not in (pixels.shape[1], pixels.shape[3]):
            raise ValueError(
                f"{images}: images must be uint8 of shape (N, H, W, 3) or (N, 3, H, W), "
                f"got {pixels.dtype} of shape {pixels.shape}"
            )
        if classes.ndim != 1 or classes.dtype.kind not in "iu" or (classes < 0).any():
            raise ValueError(
                f"{labels or images}: labels must be non-negative integers of shape (N,), "
                f"got {classes.dtype} of shape {classes.shape}"
            )
        if len(pixels) != len(classes):
            raise ValueError(f"{images} holds {len(pixels)} images but {len(classes)} labels")
        self.pixels = pixels if pixels.shape[3] == 3 else pixels.transpose(0, 2, 3, 1)  # a view, nothing is copied
        self.labels = classes.astype(np.int64)
        self.split = split

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.ascontiguousarray(self.pixels[index])

    def describe(self) -> str:
        """File name, split and number of images."""
        return f"{self.path.name} ({self.split}, {len(self)} images)"


def _read(path: Path, split: str | None = None) -> Any:
    """Read the array of a ``.npy`` file, or images and labels of a ``.npz`` file."""
    try:
        return np.load(path, mmap_mode="r") if split is None else _read_npz(path, split)
    except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _read_npz(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    with path.open("rb") as stream, np.load(stream) as file:
        for prefix in (f"{split}_", ""):
            if {f"{prefix}images", f"{prefix}labels"} <= set(file.files):
                return file[f"{prefix}images"], file[f"{prefix}labels"]
        raise ValueError(
            f"it has neither {split}_images and {split}_labels nor images and labels; it has: {', '.join(file.files)}"
        )


SOURCE = ("dataset.source_images", "dataset.source_labels")
"""The ``keys`` of source images."""


def open_images(
    path: str | Path,
    labels: str | Path | None = None,
    *,
    split: str = "test",
    image_size: int | None = None,
    classes: str | None = None,
    keys: tuple[str, str] = ("dataset.images", "dataset.labels"),
) -> CleanImages:
    """Open images in any of the supported formats.

    Args:
        path: A folder of class folders, the folder of CIFAR's binary version, a ``.npz`` file, or a ``.npy`` file.
        labels: The ``.npy`` file of labels for a ``.npy`` file of images.
        split: Split of a ``.npz`` file or of CIFAR.
        image_size: Side S of the square to which images of class folders are cropped, after resizing their shorter
            side to S / 0.875 (224 from 256, as for the clean images of ImageNet-C). None keeps them as they are.
        classes: How class folders are mapped to labels; see ``label_map``.
        keys: The configuration keys or options that give ``path`` and ``labels``, for messages.

    Raises:
        FileNotFoundError: If a path does not exist.
        ValueError: If the format is not supported.
    """
    path = existing(keys[0], path)
    label_path = existing(keys[1], labels, "file") if labels else None
    if path.is_dir() and not is_cifar_binary(path):
        _refuse_pickles(path)
        return open_folder(path, classes, Crop(image_size, image_size and round(image_size / 0.875)))
    for key, value in (("image_size", image_size), ("classes", classes)):
        if value is not None:
            raise ValueError(f"dataset.{key} applies only to folders of images, which {path} is not: remove it")
    if path.is_dir():
        return CifarBinary(path, split)
    if path.suffix in (".npz", ".npy"):
        return ArrayImages(path, label_path, split=split)
    raise ValueError(f"{path} must be a folder of class folders, a .npz file, or a .npy file with {keys[1]}")


def _refuse_pickles(folder: Path) -> None:
    """Reject CIFAR's Python version, since unpickling a file can run code."""
    if any((folder / name).is_file() for name in ("data_batch_1", "test_batch", "train", "test")):
        raise ValueError(
            f"{folder} holds Python pickles, which can run code when they are loaded: use CIFAR's binary version, "
            "a .npz file or class folders"
        )
