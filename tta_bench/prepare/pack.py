"""Decodes a data set once and stores it as plain arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tta_bench.console import progress_bar, say
from tta_bench.datasets.base import CleanImages, DomainDataset, has_label_maps
from tta_bench.datasets.classification.packed import SCHEMA, label_file, packed, pixel_file, read_facts
from tta_bench.datasets.files.class_folders import left_out_told
from tta_bench.files import check_space, write_json, writing

_CHUNK = 512


class _Part:
    """One array to write: the images of a domain, or of the source (``domain`` None)."""

    def __init__(self, domain: str | None, labels: np.ndarray, load: Callable[[int], np.ndarray]) -> None:
        self.domain, self.labels, self.load = domain, labels, load
        self.shape = load(0).shape

    @property
    def num_bytes(self) -> int:
        """Size of the pixels."""
        return len(self.labels) * int(np.prod(self.shape))

    def write(self, folder: Path, pool: ThreadPoolExecutor, advance: Callable[[int], None]) -> None:
        """Decode all images; the file gets its final name when it is complete.

        Raises:
            ValueError: If an image cannot be read or its size differs from that of the first image.
        """
        file = pixel_file(folder, self.domain)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(label_file(folder, self.domain), self.labels)
        draft = file.with_name(f"{file.name}.part")
        pixels = np.lib.format.open_memmap(draft, "w+", np.uint8, (len(self.labels), *self.shape))

        def store(index: int) -> None:
            image = self.load(index)
            if image.shape != self.shape:
                (h, w, _), (height, width, _) = image.shape, self.shape
                raise ValueError(
                    f"image {index} of {self.domain or 'the source'} has {h}x{w} pixels, but the first has "
                    f"{height}x{width}: set dataset.image_size"
                )
            pixels[index] = image

        for start in range(0, len(self.labels), _CHUNK):
            rows = range(start, min(start + _CHUNK, len(self.labels)))
            list(pool.map(store, rows))
            advance(len(rows))
        pixels.flush()
        draft.replace(file)


def pack(
    domains: DomainDataset,
    folder: str | Path,
    console: Console,
    *,
    with_source: bool = True,
    threads: int | None = None,
) -> None:
    """Write the pixels and labels of every domain as arrays, which ``dataset=packed`` memory-maps.

    Finished arrays are not written again, so that the same call continues after an interruption.

    Args:
        domains: The data set.
        folder: The output folder.
        console: Shows the progress.
        with_source: Whether to write the images of the source domain as well, if there are any.
        threads: Number of images that are decoded in parallel; None uses the number of processors.

    Raises:
        ValueError: If the folder holds another data set, an image cannot be read, or the data set has a class per
            pixel.
        WriteError: If the folder cannot be written, or the disk is too small.
    """
    if has_label_maps(domains):
        raise ValueError(f"{domains.name} has a class per pixel, but data pack stores one per image: use it unpacked")
    folder = Path(folder).expanduser()
    source = _source(domains) if with_source else None
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "name": domains.name,
        "data": domains.describe(),
        "domains": list(domains.domains),
        "source": source is not None,
    }
    _check_folder(folder, facts)
    for told in left_out_told(facts["data"]):
        say(console, f"note: {told}", "yellow")
    parts = [_Part(name, domains.labels(name), _loader(domains, name)) for name in domains.domains]
    if source is not None:
        parts.append(_Part(None, source.labels, source.__getitem__))
    missing = [part for part in parts if not pixel_file(folder, part.domain).exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_space(folder, sum(part.num_bytes for part in missing), "choose another --output or fewer domains")
        write_json(folder / "pack.json", facts)
    with (
        writing(folder),
        ThreadPoolExecutor(threads or os.cpu_count()) as pool,
        progress_bar(console) as bar,
    ):
        task = bar.add_task("", total=sum(len(part.labels) for part in missing))
        for part in missing:
            bar.update(task, description=part.domain or "source")
            part.write(folder, pool, lambda images: bar.advance(task, images))
            if not console.is_terminal:
                say(console, f"{part.domain or 'source'}: {len(part.labels)} images")
    packed(root=str(folder))
    say(console, f"packed {domains.name} into {folder}: dataset=packed dataset.root={folder}")


def _loader(domains: DomainDataset, name: str) -> Callable[[int], np.ndarray]:
    return lambda index: domains.load(name, index)


def _source(domains: DomainDataset) -> CleanImages | None:
    try:
        return domains.source_images()
    except ValueError:  # there are none
        return None


def _check_folder(folder: Path, facts: dict[str, Any]) -> None:
    try:
        there = read_facts(folder)
    except FileNotFoundError:
        return
    for key, value in json.loads(json.dumps(facts)).items():
        if there.get(key) != value:
            raise ValueError(f"{folder} already holds a packed data set that differs in {key}: choose another folder")
