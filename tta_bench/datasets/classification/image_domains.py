"""Domains whose images are stored on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tta_bench.datasets.base import CleanImages, digest
from tta_bench.datasets.files.class_folders import left_out_facts
from tta_bench.datasets.files.image_files import ImageFiles, split_damaged

OnBadImage = Literal["fail", "skip"]


class ImageDomains:
    """One set of labelled images per domain.

    Args:
        name: Name of the data set in results.
        images: The images of each domain, by its name, in the domains' usual order.
        source: Images of the source domain; None if there are none.
        facts: Further facts about the images for the result file.
    """

    def __init__(
        self, name: str, images: Mapping[str, CleanImages], source: CleanImages | None, facts: Mapping[str, Any]
    ) -> None:
        self.name, self.images, self._source, self._facts = name, dict(images), source, facts
        self.domains = tuple(images)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, ...; empty where the files do not say them."""
        return getattr(next(iter(self.images.values())), "class_names", ())

    def labels(self, domain: str) -> np.ndarray:
        """Labels (N,) int64 of a domain."""
        return self.images[domain].labels

    def load(self, domain: str, index: int) -> np.ndarray:
        """Image ``index`` of a domain: (H, W, 3) uint8, RGB."""
        return self.images[domain][index]

    def source_images(self) -> CleanImages:
        """Images of the source domain.

        Raises:
            ValueError: If there are none.
        """
        if self._source is None:
            raise ValueError(f"this method needs source images, and {self.name} has none: set dataset.source_images")
        return self._source

    def describe(self) -> dict[str, Any]:
        """Number of images per domain, the facts, and a digest of all labels and a sample of images."""
        return {"num_images": {d: len(images) for d, images in self.images.items()}, **self._facts, **self._digest}

    @cached_property
    def _digest(self) -> dict[str, str]:
        parts = [f"{domain} {digest(images, sample=8)}" for domain, images in self.images.items()]
        return {"digest": hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]}


class PixelArray:
    """Labelled images in an array, which may be a memory map.

    Args:
        pixels: (N, H, W, 3) uint8.
        labels: (N,) integers.
        description: Where they come from.
    """

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, description: str) -> None:
        self.pixels, self.labels, self.description = pixels, np.array(labels, dtype=np.int64), description

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array(self.pixels[index])

    def describe(self) -> str:
        """Where the images come from, and how many there are."""
        return f"{self.description} ({len(self)} images)"


def check_num_images(num_images: int | None, available: int, domain: str) -> None:
    """Refuse a number of images that a domain does not have.

    Raises:
        ValueError: If it is not 1 to ``available``.
    """
    if num_images is not None and not 1 <= num_images <= available:
        raise ValueError(
            f"dataset.num_images must be in 1..{available}, the number of images of {domain}; got {num_images}"
        )


def evenly(number: int, available: int) -> np.ndarray:
    """Indices (number,) of evenly spaced elements out of ``available``, beginning with the first.

    Example:
        >>> evenly(3, 7).tolist()
        [0, 2, 4]
    """
    return np.arange(number) * available // number


def from_files(
    name: str,
    files: Mapping[str, ImageFiles],
    source: CleanImages | None,
    facts: Mapping[str, Any],
    num_images: int | None,
    on_bad_image: OnBadImage,
) -> ImageDomains:
    """Domains made of image files.

    Args:
        name: Name of the data set in results.
        files: The images of each domain.
        source: Images of the source domain; None if there are none.
        facts: Further facts about the images for the result file.
        num_images: Use only this many images of each domain, evenly spaced in their order; None uses all.
        on_bad_image: ``skip`` excludes damaged files now, so that the stream contains only readable images, and adds
            their number and the first names to ``facts``; ``fail`` does not open any file before it is needed.

    Raises:
        ValueError: If a domain has fewer than ``num_images`` images, or none that can be read.
    """
    images: dict[str, CleanImages] = {}
    skipped: list[str] = []
    for domain, chosen in files.items():
        check_num_images(num_images, len(chosen), domain)
        if num_images is not None:
            chosen = chosen.rows(evenly(num_images, len(chosen)))
        if on_bad_image == "skip":
            intact, names = split_damaged(chosen)
            chosen = chosen.rows(intact)
            skipped += [f"{domain}/{name}" for name in names]
        images[domain] = chosen
    if on_bad_image == "skip":
        facts = {**facts, "skipped_images": {"number": len(skipped), "first": skipped[:10]}}
    return ImageDomains(name, images, source, {**facts, **left_out_facts(files.values(), source)})
