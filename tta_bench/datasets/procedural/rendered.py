"""Images that are rendered on first access."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

SPLITS = ("train", "source", "validation", "test")


class RenderedImages:
    """The first ``num_images`` images of a split, rendered on first access and then kept.

    Args:
        what: What the images show, for ``describe``.
        render: Renders an image from its split, index and size.
        label: Returns the class of an image from its index.
        split: One of ``SPLITS``.
        num_images: Number of images, a multiple of the number of classes for balanced classes.
        size: Height and width in pixels.

    Raises:
        ValueError: If ``num_images`` is below 1.
    """

    def __init__(
        self,
        what: str,
        render: Callable[[str, int, int], np.ndarray],
        label: Callable[[int], int],
        split: str,
        num_images: int,
        size: int = 64,
    ) -> None:
        if num_images < 1:
            raise ValueError(f"dataset.num_images must be at least 1, got {num_images}")
        self.what, self.render, self.split, self.size = what, render, split, size
        self.labels = np.array([label(i) for i in range(num_images)], dtype=np.int64)
        self._rendered: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        if index not in self._rendered:
            self._rendered[index] = self.render(self.split, index, self.size)
        return self._rendered[index]

    def describe(self) -> str:
        """Split and size."""
        return f"{self.what} ({self.split}, {len(self)} images, {self.size} pixels)"
