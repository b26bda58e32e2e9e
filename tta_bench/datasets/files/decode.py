"""Decoding of image files: all readers treat formats, bit depths and damage in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

_FORMATS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff", ".gif",
    ".jp2", ".avif",
)  # fmt: skip
# Suffixes of image files that the installed Pillow reads.
IMAGE_SUFFIXES = tuple(suffix for suffix in _FORMATS if Image.registered_extensions().get(suffix) in Image.OPEN)


def read_rgb(path: Path) -> Image.Image:
    """Decode an image file to RGB with eight bits per channel.

    16-bit values are reduced to their upper byte, which undoes the usual scaling of 255 to 65535. Pillow does this for
    colour images, but would clip grey images at 255. Transparency is dropped.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not an image, is truncated, or its pixel range is unknown; the message names it.
    """
    with _opened(path) as file:
        # 32-bit integers are how Pillow reads 16-bit PGM (and PNG before version 11.1).
        if file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM")):
            return Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert("RGB")
        if file.mode in ("I", "F"):
            kind = "integers" if file.mode == "I" else "floating-point numbers"
            raise ValueError(f"{path} holds 32-bit {kind}, whose range is unknown: save it with 8 bits per channel")
        return file.convert("RGB")


def read_numbers(path: Path) -> np.ndarray:
    """Read the pixels of an image file as stored: grey values or palette indices (H, W), or colours (H, W, C).

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not an image or is truncated; the message names it.
    """
    with _opened(path) as file:
        pixels = np.asarray(file)
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with Image.open(path) as file:
            yield file
    except (UnidentifiedImageError, OSError, SyntaxError) as error:  # a damaged PNG is a SyntaxError to Pillow
        raise ValueError(f"{path} is not a readable image: remove or replace it") from error
