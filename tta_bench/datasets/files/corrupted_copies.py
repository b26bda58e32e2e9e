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
from tta_bench.datasets.files.class_folders import ImageFiles

SCHEMA = "tta_bench.corrupted_files/1"
SEVERITIES = (1, 2, 3, 4, 5)
JPEG_QUALITY = 85  # of the published files: a second, mild corruption


class Layout(Protocol):
    """Where the images of each corruption and severity are written; several processes write different ones."""

    def is_complete(self, corruption: str) -> bool:
        """Whether an earlier call has finished a corruption."""

    def start(self, corruption: str) -> None:
        """Make room for a corruption."""

    def has(self, corruption: str, severity: int, index: int) -> bool:
        """Whether an image was written by an earlier call that was cut off."""

    def write(self, corruption: str, severity: int, index: int, image: np.ndarray) -> None:
        """Write one image (H, W, 3) uint8."""

    def finish(self, corruption: str) -> None:
        """All images of a corruption are written."""

    def num_bytes(self) -> int:
        """About how much one corruption at one severity takes."""


class JpegFolders:
    """``<corruption>/<severity>/<class>/<image>.JPEG``, as ImageNet-C and Tiny-ImageNet-C.

    Args:
        folder: What holds the folders of the corruptions.
        names: Class and file of each image, for example ``n01440764/ILSVRC2012_val_00000293.JPEG``.
        severities: Which severities there will be.
        shape: Of one image.

    Raises:
        ValueError: If two images would get one name.
    """

    def __init__(self, folder: Path, names: Sequence[str], severities: Sequence[int], shape: tuple[int, ...]) -> None:
        self.folder, self.severities, self.shape = folder, severities, shape
        self.names = [str(PurePosixPath(name).with_suffix(".JPEG")) for name in names]
        name, times = Counter(self.names).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{times} images would be called {name}: give them other names")
        self.classes = sorted({name.partition("/")[0] for name in self.names})

    def is_complete(self, corruption: str) -> bool:
        """Never: every image is looked for."""
        return False

    def start(self, corruption: str) -> None:
        """Make the class folders."""
        for severity in self.severities:
            for name in self.classes:
                (self.folder / corruption / str(severity) / name).mkdir(parents=True, exist_ok=True)

    def path(self, corruption: str, severity: int, index: int) -> Path:
        """The file of an image."""
        return self.folder / corruption / str(severity) / self.names[index]

    def has(self, corruption: str, severity: int, index: int) -> bool:
        """Whether the file is there; it gets its name when it is whole."""
        return self.path(corruption, severity, index).exists()

    def write(self, corruption: str, severity: int, index: int, image: np.ndarray) -> None:
        """Save with the quality of the published files."""
        path = self.path(corruption, severity, index)
        draft = path.with_name(f".{path.name}.part")
        Image.fromarray(image).save(draft, format="JPEG", quality=JPEG_QUALITY, optimize=True)
        draft.replace(path)

    def finish(self, corruption: str) -> None:
        """Nothing is left to do."""

    def num_bytes(self) -> int:
        """About 0.09 bytes per channel of a pixel, the mean of the published files."""
        return int(0.09 * np.prod(self.shape) * len(self.names))


class SeverityBlocks:
    """``<corruption>.npy`` with the images at severity 1 to 5 one after the other, and ``labels.npy``, as CIFAR-C.

    Args:
        folder: What holds the arrays.
        labels: Label of each image.
        shape: Of one image.
    """

    def __init__(self, folder: Path, labels: np.ndarray, shape: tuple[int, ...]) -> None:
        self.folder, self.labels, self.shape = folder, labels, shape
        self._open: dict[str, np.ndarray] = {}

    def _draft(self, corruption: str) -> Path:
        return self.folder / f"{corruption}.npy.part"

    def is_complete(self, corruption: str) -> bool:
        """Whether the file is there; it gets its name when it is whole."""
        return (self.folder / f"{corruption}.npy").exists()

    def start(self, corruption: str) -> None:
        """Make an empty array."""
        shape = (len(SEVERITIES) * len(self.labels), *self.shape)
        np.lib.format.open_memmap(self._draft(corruption), "w+", np.uint8, shape)

    def has(self, corruption: str, severity: int, index: int) -> bool:
        """No: an array that was cut off is written anew."""
        return False

    def write(self, corruption: str, severity: int, index: int, image: np.ndarray) -> None:
        """Put an image in its place.

        Raises:
            ValueError: If it has another size than the first.
        """
        if image.shape != self.shape:
            (h, w, _), (height, width, _) = image.shape, self.shape
            raise ValueError(f"image {index} has {h}x{w} pixels and the first has {height}x{width}: set --image-size")
        if corruption not in self._open:
            self._open = {corruption: np.load(self._draft(corruption), mmap_mode="r+")}
        self._open[corruption][(severity - 1) * len(self.labels) + index] = image

    def finish(self, corruption: str) -> None:
        """Give the file its name."""
        self._draft(corruption).replace(self.folder / f"{corruption}.npy")
        np.save(self.folder / "labels.npy", np.tile(self.labels, len(SEVERITIES)))

    def num_bytes(self) -> int:
        """Size of a block."""
        return int(np.prod(self.shape)) * len(self.labels)


def recipe_file(folder: Path) -> Path:
    """Where ``tta-bench data corrupt`` says what it made of what."""
    return folder / "corrupted.json"


def read_recipe(folder: Path) -> dict[str, Any] | None:
    """What ``tta-bench data corrupt`` said of a folder; None of one that it did not write.

    Raises:
        ValueError: If the file is damaged, or of something else.
    """
    file = recipe_file(folder)
    if not file.is_file():
        return None
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise ValueError(f"{file} is not of tta-bench data corrupt: the key 'schema' should say {SCHEMA!r}")
    return facts


def made_by(folder: Path) -> dict[str, Any]:
    """What a result says of the making of a folder: nothing, if it is not our own."""
    recipe = read_recipe(folder)
    return {} if recipe is None else {"made_by": recipe}


def names_of(images: CleanImages) -> list[str]:
    """Class and file of each image: its own, or made of its label and number for images of an array."""
    if isinstance(images, ImageFiles):
        return [images.name(i).replace(os.sep, "/") for i in range(len(images))]
    width = len(str(int(images.labels.max())))
    return [f"{label:0{width}d}/{i:08d}" for i, label in enumerate(images.labels.tolist())]


def use_one_thread() -> None:
    """Keep OpenCV's share of the corruptions to the thread of this process."""
    cv2.setNumThreads(1)
