"""Domains generated from clean images by corrupting them on the fly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.datasets.base import CleanImages, digest
from tta_bench.datasets.corruptions import corrupt, load_frost_textures, name_frost_textures
from tta_bench.datasets.corruptions.names import check_family, check_severity, corruption_and_severity, domain_names
from tta_bench.datasets.files.arrays import SOURCE, open_images
from tta_bench.datasets.files.cifar_binary import is_cifar_binary
from tta_bench.datasets.files.class_folders import check_same_classes, left_out_facts


class CorruptedDomains:
    """Clean images under each of several corruptions; a domain is ``fog``, or ``fog/3`` for another severity.

    Every domain shows the same clean images. The corruption of an image depends on (seed, domain, image) only,
    never on the stream or on what was loaded before.

    Args:
        name: Name of the data set in results.
        clean: Clean images.
        source: Clean images of the source domain, for source statistics; None if there are none.
        domains: ``common`` (the 15), ``validation`` (the 4), or a list of corruption names,
            optionally with their own severity as in ``fog/3``; ``clean`` is allowed.
        severity: 1 to 5.
        family: Constants of the published corruptions: ``imagenet``, ``cifar`` or ``tiny``.
        num_images: Use only this many clean images, from the first; None uses all.
        frost_folder: Published frost textures; None generates textures.
        seed: Seed of the corruptions.

    Raises:
        ValueError: If a corruption, the severity, the family or ``num_images`` is wrong.
    """

    def __init__(
        self,
        name: str,
        clean: CleanImages,
        source: CleanImages | None,
        *,
        domains: str | Sequence[str] = "common",
        severity: int = 5,
        family: str = "imagenet",
        num_images: int | None = None,
        frost_folder: str | None = None,
        seed: int = 0,
    ) -> None:
        if num_images is not None and not 1 <= num_images <= len(clean):
            raise ValueError(
                f"dataset.num_images must be in 1..{len(clean)}, the number of clean images; got {num_images}"
            )
        check_severity(severity)
        check_family(family)
        self.name, self.clean, self._source = name, clean, source
        self.domains = domain_names(domains)
        self.severity, self.family, self.seed = severity, family, seed
        self.num_images = num_images or len(clean)
        self.frost_folder = frost_folder
        self._has_frost = any(domain.partition("/")[0] == "frost" for domain in self.domains)
        # Generated textures take a second: they wait for the first image, or for ``make_shared``.
        self._frost = load_frost_textures(frost_folder) if self._has_frost and frost_folder is not None else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes 0, 1, ...; empty where the files do not say them."""
        return getattr(self.clean, "class_names", ())

    def make_shared(self) -> None:
        """Generate the textures of frost, if a domain shows it."""
        if self._has_frost and self._frost is None:
            self._frost = load_frost_textures()

    def labels(self, domain: str) -> np.ndarray:
        """Labels (N,) int64; the same for every domain."""
        return self.clean.labels[: self.num_images]

    def load(self, domain: str, index: int) -> np.ndarray:
        """Image ``index`` of ``domain``: (H, W, 3) uint8, RGB."""
        image = self.clean[index]
        corruption, severity = corruption_and_severity(domain, self.severity)
        if corruption == "clean":
            return image
        rng = np.random.default_rng([self.seed, zlib.crc32(domain.encode()), index])
        return corrupt(image, corruption, severity, family=self.family, rng=rng, frost_textures=self._frost)

    def describe(self) -> dict[str, Any]:
        """Facts about the clean images and the corruptions, and the number of classes if the files tell it."""
        num_classes = getattr(self.clean, "num_classes", None)
        return {
            **({} if num_classes is None else {"classes": num_classes}),
            "clean": self.clean.describe(),
            "clean_digest": digest(self.clean),
            "num_images": self.num_images,
            "severity": self.severity,
            "family": self.family,
            "frost_textures": name_frost_textures(self.frost_folder),
            "seed": self.seed,
            **left_out_facts([self.clean], self._source),
        }

    def source_images(self) -> CleanImages:
        """Clean images of the source domain.

        Raises:
            ValueError: If there are none.
        """
        if self._source is None:
            raise ValueError(f"this method needs source images, and {self.name} has none: set dataset.source_images")
        return self._source


def corrupted(
    *,
    images: str,
    labels: str | None = None,
    source_images: str | None = None,
    source_labels: str | None = None,
    split: str = "test",
    source_split: str = "source",
    classes: str | None = None,
    image_size: int | None = None,
    num_images: int | None = None,
    domains: str | list[str] = "common",
    severity: int = 5,
    family: str = "imagenet",
    frost_folder: str | None = None,
    seed: int = 0,
) -> CorruptedDomains:
    """Your own clean images, corrupted on the fly.

    Args:
        images: A folder of class folders, the folder of CIFAR's binary version, a ``.npz`` file, or a ``.npy`` file.
        labels: The ``.npy`` file of labels beside a ``.npy`` file of images.
        source_images: Images of the source domain, in the same formats; by default those of the ``.npz`` file, or
            CIFAR's training images.
        source_labels: The ``.npy`` file of labels for a ``.npy`` file of source images.
        split: Arrays of a ``.npz`` file that the stream uses: ``<split>_images`` and ``<split>_labels``.
        source_split: The same for the source domain.
        classes: How class folders are mapped to labels: ``imagenet`` for the 1000 WordNet ids, or the path of a list
            of class names; None sorts the folders by name.
        image_size: Side of the square to which images of a folder are resized and cropped.
        num_images: Use only this many images, from the first; None uses all.
        domains: ``common`` (the 15), ``validation`` (the 4), or a list of corruption names.
        severity: 1 to 5.
        family: Constants of the published corruptions: ``imagenet`` (224 pixels), ``tiny`` (64), ``cifar`` (32).
        frost_folder: Folder of the published frost textures; without it, textures are generated, and the result says
            so.
        seed: Seed of the corruptions.

    Raises:
        FileNotFoundError: If a path does not exist.
        ValueError: If a file or an argument is wrong; the message says what to do.
    """
    clean = open_images(images, labels, split=split, image_size=image_size, classes=classes)
    source_images = source_images or _own_source(Path(images).expanduser(), source_split)
    source = None
    if source_images is not None:
        source = open_images(
            source_images, source_labels, split=source_split, image_size=image_size, classes=classes, keys=SOURCE
        )
        check_same_classes(clean, source)
    return CorruptedDomains(
        "corrupted", clean, source, domains=domains, severity=severity, family=family,
        num_images=num_images, frost_folder=frost_folder, seed=seed,
    )  # fmt: skip


def _own_source(images: Path, split: str) -> str | None:
    """Return the path itself if it also holds images of the source domain."""
    if images.suffix == ".npz":
        with np.load(images) as file:
            return str(images) if f"{split}_images" in file.files else None
    return str(images) if images.is_dir() and is_cifar_binary(images) else None
