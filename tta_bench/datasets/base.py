"""Interfaces of data sets: named domains of labelled images, or of images with a class for every pixel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

UNLABELLED = -1
"""Label of an unlabelled image, which is predicted but not scored."""


class CleanImages(Protocol):
    """Labelled images, accessed by index."""

    labels: np.ndarray  # (N,) int64, UNLABELLED for unlabelled images

    def __len__(self) -> int:
        """Number of images N."""

    def __getitem__(self, index: int) -> np.ndarray:
        """Image ``index``: (H, W, 3) uint8, RGB."""

    def describe(self) -> str:
        """Short description of where the images come from."""


def digest(images: CleanImages, sample: int = 64) -> str:
    """Twelve hex digits that change when the images do: SHA-256 over all labels and an even sample of images."""
    sha = hashlib.sha256(np.ascontiguousarray(images.labels).tobytes())
    for index in np.unique(np.linspace(0, len(images) - 1, sample).astype(int)):
        sha.update(images[int(index)].tobytes())
    return sha.hexdigest()[:12]


class Subset:
    """A subset of images.

    Args:
        images: All images.
        rows: Indices of the images to keep.
    """

    def __init__(self, images: CleanImages, rows: Sequence[int] | np.ndarray) -> None:
        self.images, self.rows = images, np.asarray(rows, dtype=np.int64)
        self.labels = images.labels[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[int(self.rows[index])]

    def describe(self) -> str:
        """Number of images, and description of the full set."""
        return f"{len(self)} of {self.images.describe()}"


class DomainDataset(Protocol):
    """Named domains of labelled images, which streams refer to."""

    @property
    def name(self) -> str:
        """Name of the data set in results."""

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains' names, in their usual order."""

    def labels(self, domain: str) -> np.ndarray:
        """Labels (N,) int64 of a domain, ``UNLABELLED`` for unlabelled images."""

    def load(self, domain: str, index: int) -> np.ndarray:
        """Image ``index`` of a domain: (H, W, 3) uint8, RGB."""

    def source_images(self) -> CleanImages:
        """Labelled images of the source domain, disjoint from those of the stream."""

    def describe(self) -> dict[str, Any]:
        """Everything that determines the images, as plain values for a result file."""


class SegmentedImages(CleanImages, Protocol):
    """Images with label maps, accessed by index. There are no image-level labels: ``labels`` are zeros."""

    def label_map(self, index: int) -> np.ndarray:
        """Classes (H, W) uint8, 255 for ignored pixels; H and W may differ from those of the image."""


class SegmentedSubset(Subset):
    """A subset of images with their label maps."""

    images: SegmentedImages

    def label_map(self, index: int) -> np.ndarray:
        """Label map of image ``index``, as for ``SegmentedImages``."""
        return self.images.label_map(int(self.rows[index]))


class SegmentationDataset(DomainDataset, Protocol):
    """Named domains of images with label maps."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, ..."""

    def label_map(self, domain: str, index: int) -> np.ndarray:
        """Label map of image ``index`` of a domain, as for ``SegmentedImages``."""

    def source_images(self) -> SegmentedImages:
        """Images of the source domain, disjoint from those of the stream."""


@runtime_checkable
class OrderedDataset(Protocol):
    """A data set with its own order of arrival, which ``setting=as_given`` keeps."""

    def arrival_order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Domain index in ``domains``, row in the domain, and time in seconds of each arrival, (N,) each.

        Unknown times are nan; the times are None if all are unknown.
        """


def arrival_order(domains: DomainDataset) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """The data set's own order of arrival, see ``OrderedDataset``; None if it has none."""
    return domains.arrival_order() if isinstance(domains, OrderedDataset) else None


@runtime_checkable
class SharingDataset(Protocol):
    """A data set whose images share something that takes time to make, such as textures."""

    def make_shared(self) -> None:
        """Make it now, before processes that load images copy the data set."""


def has_label_maps(domains: DomainDataset) -> TypeGuard[SegmentationDataset]:
    """Whether every pixel has a class, instead of every image."""
    return hasattr(domains, "label_map")


def has_unlabelled(domains: DomainDataset) -> bool:
    """Whether some images have no labels, so that errors are only over the others."""
    return any(bool((np.asarray(domains.labels(name)) == UNLABELLED).any()) for name in domains.domains)


def label_digest(images: SegmentedImages, sample: int = 8) -> str:
    """Twelve hex digits that change when the label maps do: SHA-256 over an even sample of them."""
    sha = hashlib.sha256()
    for index in np.unique(np.linspace(0, len(images) - 1, sample).astype(int)):
        sha.update(np.ascontiguousarray(images.label_map(int(index))).tobytes())
    return sha.hexdigest()[:12]
