"""Label files of segmentation: PNGs of class numbers, or of a colour per class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tta_bench.datasets.files.decode import read_numbers, read_rgb
from tta_bench.files import read_lines

IGNORE = 255  # the label of pixels that do not count
VOID = ("void", "ignore", "unlabeled", "unlabelled")  # what a list of classes calls such pixels
LabelReader = Callable[[Path], np.ndarray]  # file -> (H, W) uint8, classes and IGNORE


class NumberLabels:
    """Reads PNGs whose pixels are numbers.

    Args:
        meaning: The class of each number, or ``IGNORE``; 255 always means ``IGNORE``.
    """

    def __init__(self, meaning: Mapping[int, int]) -> None:
        self._table = np.full(256, -1, dtype=np.int16)
        self._table[[*meaning, IGNORE]] = [*meaning.values(), IGNORE]

    def __call__(self, path: Path) -> np.ndarray:
        """Labels (H, W) uint8.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is no image of numbers, or one of them is no class.
        """
        values = read_numbers(path)
        if values.ndim != 2:
            raise ValueError(f"{path} is a colour image, where a number per pixel is expected: give classes colours")
        labels = self._table[values.clip(0, 256 - 1)]
        labels[values != values.clip(0, 256 - 1)] = -1
        if (labels < 0).any():
            raise ValueError(f"{path} holds the label {values[labels < 0][0]}, which is no class and not {IGNORE}")
        return labels.astype(np.uint8)


class ColorLabels:
    """Reads PNGs whose pixels are colours.

    Args:
        meaning: The class of each colour (r, g, b), or ``IGNORE``.
    """

    def __init__(self, meaning: Mapping[tuple[int, int, int], int]) -> None:
        pairs = sorted((_code(np.array(color)), label) for color, label in meaning.items())
        self._codes, self._labels = np.array([c for c, _ in pairs]), np.array([x for _, x in pairs], dtype=np.uint8)

    def __call__(self, path: Path) -> np.ndarray:
        """Labels (H, W) uint8.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is no image, or a colour is not in the list.
        """
        pixels = np.asarray(read_rgb(path))
        codes = _code(pixels)
        nearest = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        if (unknown := self._codes[nearest] != codes).any():
            row, column = np.argwhere(unknown)[0]
            red, green, blue = pixels[row, column]
            raise ValueError(
                f"{path} has the colour {red} {green} {blue} in row {row}, column {column}, which the list of classes "
                "lacks"
            )
        found: np.ndarray = self._labels[nearest]
        return found


def _code(colors: np.ndarray) -> np.ndarray:
    """Colours (..., 3) -> one number each."""
    return colors.astype(np.int64) @ np.array([65536, 256, 1])


class ClassList(NamedTuple):
    """Names of the classes 0, 1, ..., and how their label files are read."""

    names: tuple[str, ...]
    read: LabelReader


def read_class_list(path: Path) -> ClassList:
    """Read a text file with a class per line: a name, or a colour and a name, as in ``64 128 64  Tree``.

    Lines without colours stand for the numbers 0, 1, ... in the label files. Lines of the same name are one class.
    Those called void (``VOID``) do not count, and take no class number. Empty lines and those that start with # are
    skipped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is neither, only some lines have colours, or there is no class.
    """
    lines = [line.split() for line in read_lines(path, "list of classes") if not line.startswith("#")]
    colored = [len(words) > 3 and all(word.isdecimal() and int(word) < 256 for word in words[:3]) for words in lines]
    if any(colored) and not all(colored):
        wrong = " ".join(lines[colored.index(False)])
        raise ValueError(f"{path}: {wrong!r} has no colour (three numbers up to 255 before the name), and others have")
    titles = [" ".join(words[3:] if any(colored) else words) for words in lines]
    names = tuple(dict.fromkeys(title for title in titles if title.lower() not in VOID))
    if not names:
        raise ValueError(f"{path} names no class")
    labels = [names.index(title) if title in names else IGNORE for title in titles]
    if not any(colored):
        return ClassList(names, NumberLabels(dict(enumerate(labels))))
    colors = [(int(words[0]), int(words[1]), int(words[2])) for words in lines]
    return ClassList(names, ColorLabels(dict(zip(colors, labels, strict=True))))
