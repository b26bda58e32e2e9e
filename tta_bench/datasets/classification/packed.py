"""A data set as plain arrays: a memory map of pixels and one of labels per domain, nothing to decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.datasets.classification.image_domains import ImageDomains, PixelArray
from tta_bench.datasets.files.class_folders import some

SCHEMA = "tta_bench.pack/1"


def pixel_file(folder: Path, domain: str | None) -> Path:
    """Where the pixels (N, H, W, 3) uint8 of a domain lie, or of the source if there is no domain."""
    return folder / "source.npy" if domain is None else folder / "domains" / f"{domain}.npy"


def label_file(folder: Path, domain: str | None) -> Path:
    """Where the labels (N,) int64 of a domain lie, or of the source if there is no domain."""
    return pixel_file(folder, domain).with_suffix(".labels.npy")


def read_facts(folder: Path) -> dict[str, Any]:
    """What ``pack.json`` says: schema, name, data, domains and whether there is a source.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is something else.
    """
    file = folder / "pack.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} is no packed data set: make one with tta-bench data pack")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise ValueError(f"{file} is no list of a packed data set: the key 'schema' should say {SCHEMA!r}")
    return facts


def packed(*, root: str, domains: str | list[str] | None = None) -> ImageDomains:
    """A data set written by ``tta-bench data pack``, which needs no decoding.

    Args:
        root: The folder it was written to.
        domains: Names of the domains to show, in their usual order; None takes all of them, in the order of packing.

    Raises:
        FileNotFoundError: If there is no packed data set, or packing it was not finished.
        ValueError: If a domain is not in it, or a file is damaged.
    """
    folder = Path(root).expanduser()
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
        raise ValueError(f"{pixel_file(folder, domain)} and the labels beside it do not belong together: pack anew")
    return PixelArray(pixels, labels, domain or "source")


def _map(file: Path) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}: packing was not finished, run the same tta-bench data pack again")
    try:
        return np.load(file, mmap_mode="r")
    except (EOFError, OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error
