"""CIFAR10-C and CIFAR100-C as published: one array per corruption, with its five severities one after the other.

Each severity has the 10,000 test images; your own subset may have fewer, the same number at each severity.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tta_bench.datasets.classification.image_domains import ImageDomains, PixelArray, check_num_images
from tta_bench.datasets.corruptions.names import check_severity, corruption_and_severity, domain_names
from tta_bench.datasets.files.arrays import SOURCE, open_images
from tta_bench.datasets.files.class_folders import left_out_facts
from tta_bench.datasets.files.corrupted_copies import made_by
from tta_bench.files import existing

_SEVERITIES = 5
_PUBLISHED = 10_000  # images per severity


def cifar10_c(
    *,
    root: str,
    domains: str | list[str] = "common",
    severity: int = 5,
    num_images: int | None = None,
    source_images: str | None = None,
    source_labels: str | None = None,
    source_split: str = "source",
) -> ImageDomains:
    """CIFAR10-C: the 10,000 test images of CIFAR-10 under each corruption, 32x32, ten classes.

    Args:
        root: The folder ``CIFAR-10-C`` with a ``.npy`` file per corruption and ``labels.npy``, a subset of it, or
            the output of ``tta-bench data corrupt --family cifar``.
        domains: ``common`` (the 15), ``validation`` (the 4), or a list of corruptions, optionally with their own
            severity as in ``fog/3``.
        severity: 1 to 5.
        num_images: Use only the first images of each domain; None uses all.
        source_images: Clean images for the methods that need them: ``cifar-10-batches-bin`` (CIFAR's binary
            version), a folder of class folders, a ``.npz`` file, or a ``.npy`` file. The Python version is a pickle,
            which can run code when it is loaded, and is rejected.
        source_labels: The ``.npy`` file of labels for a ``.npy`` file of source images.
        source_split: Split of the source images: ``<split>_images`` and ``<split>_labels`` in a ``.npz`` file; for
            CIFAR, ``source`` and ``train`` are the training images.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file or an argument is wrong; the message says what to do.

    Source: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", ICLR 2019; Zenodo record 2535967.
    """
    source = (source_images, source_labels, source_split)
    return _cifar_c("cifar10_c", 10, root, domains, severity, num_images, source)


def cifar100_c(
    *,
    root: str,
    domains: str | list[str] = "common",
    severity: int = 5,
    num_images: int | None = None,
    source_images: str | None = None,
    source_labels: str | None = None,
    source_split: str = "source",
) -> ImageDomains:
    """CIFAR100-C: the 10,000 test images of CIFAR-100 under each corruption, 32x32, a hundred classes.

    Args:
        root: The folder ``CIFAR-100-C`` with a ``.npy`` file per corruption and ``labels.npy``.
        domains: ``common`` (the 15), ``validation`` (the 4), or a list of corruptions, optionally with their own
            severity as in ``fog/3``.
        severity: 1 to 5.
        num_images: Use only the first images of each domain; None uses all.
        source_images: Clean images, as for ``cifar10_c``; CIFAR's binary version is the folder ``cifar-100-binary``.
        source_labels: The ``.npy`` file of labels for a ``.npy`` file of source images.
        source_split: Split of the source images, as for ``cifar10_c``.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file or an argument is wrong; the message says what to do.

    Source: as ``cifar10_c``; Zenodo record 3555552.
    """
    source = (source_images, source_labels, source_split)
    return _cifar_c("cifar100_c", 100, root, domains, severity, num_images, source)


def _cifar_c(
    name: str,
    num_classes: int,
    root: str,
    domains: str | list[str],
    severity: int,
    num_images: int | None,
    source: tuple[str | None, str | None, str],
) -> ImageDomains:
    check_severity(severity)
    folder = existing("dataset.root", root, "folder")
    labels = _labels(folder / "labels.npy", num_classes)
    block, shape = len(labels) // _SEVERITIES, (len(labels), 32, 32, 3)
    check_num_images(num_images, block, name)
    images = {}
    for domain in domain_names(domains):
        corruption, chosen = corruption_and_severity(domain, severity)
        rows = slice((chosen - 1) * block, (chosen - 1) * block + (num_images or block))
        file = folder / f"{corruption}.npy"
        pixels = _array(file)
        if pixels.shape != shape or pixels.dtype != np.uint8:
            raise ValueError(
                f"{file} should hold uint8 of shape {shape}, to match labels.npy, but holds {pixels.dtype} "
                f"{pixels.shape}"
            )
        images[domain] = PixelArray(pixels[rows], labels[rows], f"{file.name}, severity {chosen}")
    clean = None if source[0] is None else open_images(source[0], source[1], split=source[2], keys=SOURCE)
    found = getattr(clean, "num_classes", num_classes)
    if found != num_classes:
        raise ValueError(f"{source[0]} holds images of {found} classes, and {name} has {num_classes}")
    facts = {"severity": severity, **made_by(folder), **left_out_facts([], clean)}
    return ImageDomains(name, images, clean, facts)


def _labels(file: Path, num_classes: int) -> np.ndarray:
    """The labels of all severities, which must agree: every severity shows the same images."""
    labels = _array(file)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise ValueError(f"{file} should hold a 1-D array of integers, but holds {labels.dtype} {labels.shape}")
    if len(labels) % _SEVERITIES or (labels.reshape(_SEVERITIES, -1) != labels[: len(labels) // _SEVERITIES]).any():
        raise ValueError(
            f"{file} holds {len(labels)} labels, which are not the same labels five times: it should hold those of "
            "severities 1 to 5 one after the other"
        )
    found = np.unique(labels)
    subset = len(labels) < _SEVERITIES * _PUBLISHED  # may lack classes
    if found[0] < 0 or found[-1] >= num_classes or (len(found) < num_classes and not subset):
        raise ValueError(
            f"{file} holds {len(found)} classes from {found[0]} to {found[-1]}, but {num_classes} classes from 0 to "
            f"{num_classes - 1} are expected: does it belong to another data set?"
        )
    return labels


def _array(file: Path) -> np.ndarray:
    """Memory-map a file, so that only images that are used are ever read."""
    if not file.is_file():
        present = sorted(path.stem for path in file.parent.glob("*.npy"))
        raise FileNotFoundError(f"{file.parent} lacks {file.name}; it holds: {', '.join(present) or 'no .npy files'}")
    try:
        array: np.ndarray = np.load(file, mmap_mode="r")
    except (EOFError, OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error
    return array
