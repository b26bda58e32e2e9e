"""Corrupted images as files, in the layouts of ImageNet-C (JPEG files in folders) and of CIFAR-C (arrays)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import cv2
import numpy as np
from PIL import Image

from tta_bench.datasets.base import CleanImages
from tta_bench.datasets.files.image_files import ImageFiles

SCHEMA = "tta_bench.corrupted_files/1"
SEVERITIES = (1, 2, 3, 4, 5)
JPEG_QUALITY = 85  # of the published files: a second, mild corruption


class Layout(Protocol):
    """Where the images of each corruption and severity are written; several processes may write at once."""

    def is_complete(self, corruption: str) -> bool:
        """Whether an earlier call has finished a corruption."""

    def start(self, corruption: str) -> None:
        """Prepare the files or folders of a corruption."""

    def has(self, corruption: str, severity: int, index: int) -> bool:
        """Whether an image was written by an earlier, interrupted call."""

    def write(self, corruption: str, severity: int, index: int, image: np.ndarray) -> None:
        """Write one image (H, W, 3) uint8."""

    def finish(self, corruption: str) -> None:
        """Called when all images of a corruption are written."""

    def num_bytes(self) -> int:
        """Approximate size of one corruption at one severity."""


class JpegFolders:
    """``<corruption>/<severity>/<class>/<image>.JPEG``, as ImageNet-C and Tiny-ImageNet-C.

    Args:
        folder: Folder for the folders of the corruptions.
        names: Class and file of each image, for example ``n01440764/ILSVRC2012_val_00000293.JPEG``.
        severities: Severities to be written.
        shape: Shape of one image.

    Raises:
        ValueError: If two images would get the same name.
    """

    def __init__(self, folder: Path, names: Sequence[str], severities: Sequence[int], shape: tuple[int, ...]) -> None:
        self.folder, self.severities, self.shape = folder, severities, shape
        self.names = [str(PurePosixPath(name).with_suffix(".JPEG")) for name in names]
        name, times = Counter(self.names).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{times} images would be called {name}: rename them")
        self.classes = sorted({name.partition("/")[0] for name in self.names})

    def is_complete(self, corruption: str) -> bool:
        """Always false: every image is checked instead."""
        return False

    def start(self, corruption: str) -> None:
        """Create the class folders."""
        for severity in self.severities:
            for name in self.classes:
                (self.folder / corruption / str(severity) / name).mkdir(parents=True, exist_ok=True)

    def path(self, corruption: str, severity: int, index: int) -> Path:
        """The file of an image."""
        return self.folder / corruption / str(severity) / self.names[index]

    def has(self, corruption: str, severity: int, index: int) -> bool:
        """Whether the file exists; it gets its name when it is complete."""
        return self.path(corruption, severity, index).exists()

    def write(self, corruption: str, severity: int, index: int, image: np.ndarray) -> None:
        """Save with the quality of the published files."""
        path = self.path(corruption, severity, index)
        draft = path.with_name(f".{path.name}.part")
        Image.fromarray(image).save(draft, format="JPEG", quality=JPEG_QUALITY, optimize=True)
        draft.replace(path)

    def finish(self, corruption: str) -> None:
        """Do nothing."""

    def num_bytes(self) -> int:
        """About 0.09 bytes per pixel and channel, the mean of the published files."""
        return int(0.09 * np.prod(self.shape) * len(self.names))


class SeverityBlocks:
    """``<corruption>.npy`` with the images at severity 1 to 5 one after the other, and ``labels.npy``, as CIFAR-C.

    Args:
        folder: Folder for the arrays.
        labels: Label of each image.
        shape: Shape of one image.
    """

    def __init__(self, folder: Path, labels: np.ndarray, shape: tuple[int, ...]) -> None:
        self.folder, self.labels, self.shape = folder, labels, shape
        self._open: dict[str, np.ndarray] = {}

    def _draft(self, corruption: str) -> Path:
        return self.folder / f"{corruption}.npy.part"

    def is_complete(self, corruption: str) -> bool:
        """Whether the file exists; it gets its name when it is complete."""
        return (self.folder / f"{corruption}.npy").exists()

    def start(self, corruption: str) -> None:
        """Create an empty array."""
        shape = (len(SEVERITIES) * len(self.labels), *self.shape)
        np.lib.format.open_memmap(self._draft(corruption), "w+", np.uint8, shape)

    def has(self, corruption: str, severity: int, index: int) -> bool:
        """Always false: an unfinished array is written again."""
        return False

    def write(self, corruption: str, severity: int, index: int, image: np.ndarray) -> None:
        """Write an image at its position.

        Raises:
            ValueError: If its size differs from that of the first image.
        """
        if image.shape != self.shape:
            (h, w, _), (height, width, _) = image.shape, self.shape
            raise ValueError(f"image {index} has {h}x{w} pixels, but the first has {height}x{width}: set --image-size")
        if corruption not in self._open:
            self._open = {corruption: np.load(self._draft(corruption), mmap_mode="r+")}
        self._open[corruption][(severity - 1) * len(self.labels) + index] = image

    def finish(self, corruption: str) -> None:
        """Rename the draft to its final name."""
        self._draft(corruption).replace(self.folder / f"{corruption}.npy")
        np.save(self.folder / "labels.npy", np.tile(self.labels, len(SEVERITIES)))

    def num_bytes(self) -> int:
        """Size of one block."""
        return int(np.prod(self.shape)) * len(self.labels)


def recipe_file(folder: Path) -> Path:
    """Path of the file in which ``tta-bench data corrupt`` records what it generated from what."""
    return folder / "corrupted.json"


def read_recipe(folder: Path) -> dict[str, Any] | None:
    """Read what ``tta-bench data corrupt`` recorded about a folder; None if it did not write the folder.

    Raises:
        ValueError: If the file is damaged, or was written by another program.
    """
    file = recipe_file(folder)
    if not file.is_file():
        return None
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise ValueError(f"{file} was not written by tta-bench data corrupt: the key 'schema' should be {SCHEMA!r}")
    return facts


def made_by(folder: Path) -> dict[str, Any]:
    """Facts for a result about how a folder was generated; empty if it was not generated by tta-bench."""
    recipe = read_recipe(folder)
    return {} if recipe is None else {"made_by": recipe}


def names_of(images: CleanImages) -> list[str]:
    """Class and file name of each image; for images of an array, generated from its label and index."""
    if isinstance(images, ImageFiles):
        return [images.name(i).replace(os.sep, "/") for i in range(len(images))]
    width = len(str(int(images.labels.max())))
    return [f"{label:0{width}d}/{i:08d}" for i, label in enumerate(images.labels.tolist())]


def use_one_thread() -> None:
    """Keep OpenCV from starting threads of its own."""
    cv2.setNumThreads(1)
