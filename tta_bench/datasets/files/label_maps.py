"""Label files for segmentation: PNGs of class numbers, or with one colour per class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tta_bench.datasets.files.decode import read_numbers, read_rgb
from tta_bench.files import read_lines

IGNORE = 255  # the label of ignored pixels
VOID = ("void", "ignore", "unlabeled", "unlabelled")  # names of ignored pixels in a list of classes
LabelReader = Callable[[Path], np.ndarray]  # file -> (H, W) uint8, classes and IGNORE


class NumberLabels:
    """Reader of PNGs whose pixels are class numbers.

    Args:
        meaning: The class of each number, or ``IGNORE``; 255 always means ``IGNORE``.
    """

    def __init__(self, meaning: Mapping[int, int]) -> None:
        self._table = np.full(256, -1, dtype=np.int16)
        self._table[[*meaning, IGNORE]] = [*meaning.values(), IGNORE]

    def __call__(self, path: Path) -> np.ndarray:
        """Labels (H, W) uint8.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If it is not a single-channel image, or a number is not a class.
        """
        values = read_numbers(path)
        if values.ndim != 2:
            raise ValueError(f"{path} is a colour image instead of a class number per pixel: give classes colours")
        labels = self._table[values.clip(0, 256 - 1)]
        labels[values != values.clip(0, 256 - 1)] = -1
        if (labels < 0).any():
            raise ValueError(f"{path} holds the label {values[labels < 0][0]}, which is neither a class nor {IGNORE}")
        return labels.astype(np.uint8)


class ColorLabels:
    """Reader of PNGs whose pixels are colours.

    Args:
        meaning: The class of each colour (r, g, b), or ``IGNORE``.
    """

    def __init__(self, meaning: Mapping[tuple[int, int, int], int]) -> None:
        pairs = sorted((_code(np.array(color)), label) for color, label in meaning.items())
        self._codes, self._labels = np.array([c for c, _ in pairs]), np.array([x for _, x in pairs], dtype=np.uint8)

    def __call__(self, path: Path) -> np.ndarray:
        """Labels (H, W) uint8.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If it is not an image, or a colour is not in the list.
        """
        pixels = np.asarray(read_rgb(path))
        codes = _code(pixels)
        nearest = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        if (unknown := self._codes[nearest] != codes).any():
            row, column = np.argwhere(unknown)[0]
            red, green, blue = pixels[row, column]
            raise ValueError(
                f"{path} has the colour {red} {green} {blue} in row {row}, column {column}, which is not in the list "
                "of classes"
            )
        found: np.ndarray = self._labels[nearest]
        return found


def _code(colors: np.ndarray) -> np.ndarray:
    """Encode each colour of (..., 3) as one number."""
    return colors.astype(np.int64) @ np.array([65536, 256, 1])


class ClassList(NamedTuple):
    """Names of the classes 0, 1, ..., and the reader of their label files."""

    names: tuple[str, ...]
    read: LabelReader


def read_class_list(path: Path) -> ClassList:
    """Read a text file with one class per line: a name, or a colour and a name, as in ``64 128 64  Tree``.

    Lines without colours stand for the numbers 0, 1, ... in the label files. Lines with the same name are one class.
    Void lines (``VOID``) are ignored and get no class number. Empty lines and those that start with # are skipped.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a line is malformed, only some lines have colours, or there are no classes.
    """
    lines = [line.split() for line in read_lines(path, "list of classes") if not line.startswith("#")]
    colored = [len(words) > 3 and all(word.isdecimal() and int(word) < 256 for word in words[:3]) for words in lines]
    if any(colored) and not all(colored):
        wrong = " ".join(lines[colored.index(False)])
        raise ValueError(f"{path}: {wrong!r} has no colour (three numbers up to 255 before the name), but others have")
    titles = [" ".join(words[3:] if any(colored) else words) for words in lines]
    names = tuple(dict.fromkeys(title for title in titles if title.lower() not in VOID))
    if not names:
        raise ValueError(f"{path} names no classes")
    labels = [names.index(title) if title in names else IGNORE for title in titles]
    if not any(colored):
        return ClassList(names, NumberLabels(dict(enumerate(labels))))
    colors = [(int(words[0]), int(words[1]), int(words[2])) for words in lines]
    return ClassList(names, ColorLabels(dict(zip(colors, labels, strict=True))))
