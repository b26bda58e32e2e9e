"""Domains whose images come with a class for every pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import cv2
import numpy as np
from PIL import Image

from tta_bench.datasets.base import DomainDataset, SegmentedImages, has_label_maps, has_unlabelled, label_digest
from tta_bench.datasets.classification.corrupted import CorruptedDomains
from tta_bench.datasets.classification.image_domains import ImageDomains, check_num_images, evenly
from tta_bench.datasets.files.decode import read_rgb
from tta_bench.datasets.files.label_maps import LabelReader

# Settings that do not work with a class per pixel, and why.
UNFIT = {"ptta": "needs a class per image", "gradual": "needs each corruption at several severities"}


def check_setting(domains: DomainDataset, setting: str) -> None:
    """Reject settings that the data set does not support.

    Raises:
        ValueError: If the setting orders images by class, or needs a corruption at several severities.
    """
    if has_label_maps(domains) and setting in UNFIT:
        raise ValueError(f"setting={setting} {UNFIT[setting]}, which {domains.name} does not have: choose another")
    if setting == "ptta" and has_unlabelled(domains):
        raise ValueError(f"setting=ptta sorts images by class, and some of {domains.name} have no label: use as_given")


class Pair(NamedTuple):
    """An image file and its label file."""

    image: Path
    labels: Path


class SegmentedFiles:
    """Image files with label files, read on demand.

    Args:
        pairs: Image files and label files.
        read_labels: Reads a label file.
        height: Height in pixels to which images are resized (bilinear), keeping the aspect ratio; labels keep their
            size. None leaves images unchanged.
        description: Where they come from.

    Raises:
        FileNotFoundError: If a label file is missing.
        ValueError: If there are no images.
    """

    def __init__(self, pairs: Sequence[Pair], read_labels: LabelReader, height: int | None, description: str) -> None:
        if not pairs:
            raise ValueError(f"{description} holds no images")
        for image, labels in pairs:
            if not labels.is_file():
                raise FileNotFoundError(f"{image} has no labels: there is no file {labels}")
        self.pairs, self.read_labels, self.height, self.description = pairs, read_labels, height, description
        self.labels = np.zeros(len(pairs), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> np.ndarray:
        image = np.asarray(read_rgb(self.pairs[index].image))
        if self.height is None or self.height == len(image):
            return image
        width = round(image.shape[1] * self.height / image.shape[0])
        return cv2.resize(image, (width, self.height), interpolation=cv2.INTER_LINEAR)

    def label_map(self, index: int) -> np.ndarray:
        """Classes (H, W) uint8 of image ``index``.

        Raises:
            ValueError: If the sizes of label file and image file differ.
        """
        pair = self.pairs[index]
        labels = self.read_labels(pair.labels)
        with Image.open(pair.image) as image:
            width, height = image.size
        if labels.shape != (height, width):
            rows, columns = labels.shape
            raise ValueError(f"{pair.labels} has {columns}x{rows} pixels, but its image {pair.image} {width}x{height}")
        return labels

    def rows(self, indices: Sequence[int]) -> SegmentedFiles:
        """Only these images, in this order."""
        return SegmentedFiles([self.pairs[i] for i in indices], self.read_labels, self.height, self.description)

    def describe(self) -> str:
        """Where the images come from, how many there are, and their height."""
        size = f"{self.height} pixels high" if self.height else "as they are"
        return f"{self.description} ({len(self)} images, {size})"


class SegmentationDomains(ImageDomains):
    """One set of images with label maps per domain.

    Args:
        name: Name of the data set in results.
        images: The images of each domain, by its name, in the domains' usual order.
        source: Images of the source domain; None if there are none.
        classes: Names of the classes.
        facts: Further facts about the images for the result file.
    """

    def __init__(
        self,
        name: str,
        images: Mapping[str, SegmentedImages],
        source: SegmentedImages | None,
        classes: tuple[str, ...],
        facts: Mapping[str, Any],
    ) -> None:
        super().__init__(name, images, source, facts)
        self.segmented, self.classes = dict(images), classes

    def label_map(self, domain: str, index: int) -> np.ndarray:
        """Label map (H, W) uint8 of image ``index`` of a domain."""
        return self.segmented[domain].label_map(index)

    def source_images(self) -> SegmentedImages:
        """Images of the source domain, as in ``ImageDomains``.

        Raises:
            ValueError: If there are none.
        """
        _require_source(self.name, self._source)
        return cast(SegmentedImages, super().source_images())

    def describe(self) -> dict[str, Any]:
        """As in ``ImageDomains``, plus the classes and digests of the label maps."""
        digests = {domain: label_digest(images) for domain, images in self.segmented.items()}
        return {**super().describe(), "classes": list(self.classes), "label_digests": digests}


class CorruptedSegmentation(CorruptedDomains):
    """Images with label maps under each of several corruptions, which do not change the labels.

    Args:
        name: Name of the data set in results.
        clean: The images.
        source: Images of the source domain; None if there are none.
        classes: Names of the classes.
        settings: Further keyword arguments of ``CorruptedDomains``.
    """

    def __init__(
        self,
        name: str,
        clean: SegmentedImages,
        source: SegmentedImages | None,
        classes: tuple[str, ...],
        **settings: Any,
    ) -> None:
        super().__init__(name, clean, source, **settings)
        self.segmented, self.classes = clean, classes

    def label_map(self, domain: str, index: int) -> np.ndarray:
        """Label map (H, W) uint8 of image ``index``; the same for every domain."""
        return self.segmented.label_map(index)

    def source_images(self) -> SegmentedImages:
        """Images of the source domain, as in ``CorruptedDomains``.

        Raises:
            ValueError: If there are none.
        """
        _require_source(self.name, self._source)
        return cast(SegmentedImages, super().source_images())

    def describe(self) -> dict[str, Any]:
        """As in ``CorruptedDomains``, plus the classes and a digest of the label maps."""
        return {**super().describe(), "classes": list(self.classes), "label_digest": label_digest(self.segmented)}


def _require_source(name: str, source: object) -> None:
    key = "source_domain" if name == "segmentation_folder" else "source_images"
    if source is None:
        raise ValueError(f"{name} has no source images: set dataset.{key}")


def segmentation_domains(
    name: str,
    files: Mapping[str, SegmentedFiles],
    source: SegmentedFiles | None,
    classes: tuple[str, ...],
    facts: Mapping[str, Any],
    *,
    num_images: int | None,
    corruptions: str | Sequence[str] | None,
    **settings: Any,
) -> SegmentationDomains | CorruptedSegmentation:
    """Create domains from files, or from corruptions of all of them.

    Args:
        name: Name of the data set in results.
        files: The images of each domain.
        source: Images of the source domain; None if there are none.
        classes: Names of the classes.
        facts: Further facts about the images for the result file.
        num_images: Use only this many images of each domain, evenly spaced in their order; None uses all.
        corruptions: If given, these are the domains, each with the images of all ``files``.
        settings: Further keyword arguments of ``CorruptedDomains``.

    Raises:
        ValueError: If a domain has fewer than ``num_images`` images, or a corruption is unknown.
    """
    chosen = dict(files)
    if num_images is not None:
        for domain, images in files.items():
            check_num_images(num_images, len(images), domain)
            chosen[domain] = images.rows(evenly(num_images, len(images)).tolist())
    if corruptions is None:
        return SegmentationDomains(name, chosen, source, classes, facts)
    first = next(iter(chosen.values()))
    pairs = [pair for images in chosen.values() for pair in images.pairs]
    together = SegmentedFiles(pairs, first.read_labels, first.height, f"{', '.join(chosen)} of {first.description}")
    return CorruptedSegmentation(name, together, source, classes, domains=corruptions, **settings)
