"""Data sets stored as plain arrays: memory-mapped pixels and labels per domain, without decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.datasets.classification.image_domains import ImageDomains, PixelArray
from tta_bench.datasets.files.class_folders import some
from tta_bench.files import existing

SCHEMA = "tta_bench.pack/1"


def pixel_file(folder: Path, domain: str | None) -> Path:
    """Path of the pixels (N, H, W, 3) uint8 of a domain, or of the source if ``domain`` is None."""
    return folder / "source.npy" if domain is None else folder / "domains" / f"{domain}.npy"


def label_file(folder: Path, domain: str | None) -> Path:
    """Path of the labels (N,) int64 of a domain, or of the source if ``domain`` is None."""
    return pixel_file(folder, domain).with_suffix(".labels.npy")


def read_facts(folder: Path) -> dict[str, Any]:
    """Read ``pack.json``: schema, name, data, domains and whether there are source images.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not such a file, or damaged.
    """
    file = folder / "pack.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} is not a packed data set: create one with tta-bench data pack")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise ValueError(f"{file} does not describe a packed data set: the key 'schema' should be {SCHEMA!r}")
    return facts


def packed(*, root: str, domains: str | list[str] | None = None) -> ImageDomains:
    """A data set written by ``tta-bench data pack``, which needs no decoding.

    Args:
        root: The folder to which it was written.
        domains: Names of the domains to use, in their usual order; None uses all of them, in the order of packing.

    Raises:
        FileNotFoundError: If there is no packed data set, or packing was not finished.
        ValueError: If a domain does not exist, or a file is damaged.
    """
    folder = existing("dataset.root", root, "folder")
    facts = read_facts(folder)
    names = facts["domains"] if domains is None else [domains] if isinstance(domains, str) else list(domains)
    for name in names:
        if name not in facts["domains"]:
            raise ValueError(f"{folder} has no domain {name!r}; it holds: {some(facts['domains'])}")
    images = {name: _open(folder, name) for name in names}
    source = _open(folder, None) if facts["source"] else None
    return ImageDomains(facts["name"], images, source, {"packed_from": facts["data"]})


def _open(folder: Path, domain: str | None) -> PixelArray:
    pixels, labels = (_map(file(folder, domain)) for file in (pixel_file, label_file))
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or labels.shape != pixels.shape[:1]:
        raise ValueError(f"{pixel_file(folder, domain)} does not match the labels beside it: pack the data set again")
    return PixelArray(pixels, labels, domain or "source")


def _map(file: Path) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: packing was not finished, run the same tta-bench data pack again")
    try:
        return np.load(file, mmap_mode="r")
    except (EOFError, OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error
