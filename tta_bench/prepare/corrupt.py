"""Writes corrupted copies of clean images in parallel processes, without importing torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from tta_bench.console import progress_bar, say
from tta_bench.datasets.base import digest
from tta_bench.datasets.classification.corrupted import CorruptedDomains
from tta_bench.datasets.corruptions import FAMILIES, name_frost_textures
from tta_bench.datasets.corruptions.names import domain_names
from tta_bench.datasets.files.arrays import open_images
from tta_bench.datasets.files.cifar_binary import is_cifar_binary
from tta_bench.datasets.files.class_folders import left_out_facts, left_out_told
from tta_bench.datasets.files.corrupted_copies import (
    SCHEMA,
    SEVERITIES,
    JpegFolders,
    Layout,
    SeverityBlocks,
    names_of,
    read_recipe,
    recipe_file,
    use_one_thread,
)
from tta_bench.files import check_space, existing, write_json, writing

_CHUNK = 32


@dataclass(frozen=True)
class CorruptionRecipe:
    """What to corrupt, how, and where to write it; every process generates the same images from it.

    Args:
        images: A folder of class folders, the folder of CIFAR's binary version, a ``.npz`` or a ``.npy`` file.
        output: The output folder.
        family: Constants of the corruptions, and the layout: ``imagenet`` and ``tiny`` are written as JPEG files in
            ``<corruption>/<severity>/<class>/``, ``cifar`` as ``<corruption>.npy`` with five blocks.
        domains: ``common``, ``validation``, a group, or corruption names separated by commas.
        severities: Some of 1 to 5.
        labels: The ``.npy`` file of labels for a ``.npy`` file of images.
        split: Split of a ``.npz`` file or of CIFAR.
        image_size: Side S of the centre crop of images in folders, after resizing to S / 0.875. None keeps them as
            they are, except that class folders in family ``imagenet`` use 224, as published.
        frost_folder: The published frost textures; without it, textures are generated.
        seed: Seed of the corruptions.

    Raises:
        ValueError: If the family, a corruption or a severity is unknown.
        FileNotFoundError: If there is no such folder of frost textures.
    """

    images: str
    output: str
    family: str
    domains: str = "common"
    severities: tuple[int, ...] = SEVERITIES
    labels: str | None = None
    split: str = "test"
    image_size: int | None = None
    frost_folder: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"--family must be one of {', '.join(FAMILIES)}; got {self.family!r}")
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            raise ValueError(f"--severities must be a subset of 1, 2, 3, 4, 5; got {list(self.severities)}")
        if self.family == "cifar" and sorted(self.severities) != list(SEVERITIES):
            raise ValueError("a file of CIFAR-C holds all five severities: omit --severities")
        if self.frost_folder is not None:
            existing("--frost-folder", self.frost_folder, "folder")
        for name in self.corruptions:
            if "/" in name or name == "clean":
                raise ValueError(f"--domains takes corruptions without a severity, not {name!r}: see --severities")

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The corruptions, in their usual order."""
        return domain_names(self.domains.split(",") if "," in self.domains else self.domains)

    def open(self) -> CorruptedDomains:
        """The images of all corruptions at all severities, the same as those of ``dataset=corrupted``."""
        size = self.image_size
        if size is None and self.family == "imagenet" and _is_class_folders(Path(self.images).expanduser()):
            size = 224
        clean = open_images(self.images, self.labels, split=self.split, image_size=size, keys=("--input", "--labels"))
        domains = [f"{name}/{severity}" for name in self.corruptions for severity in self.severities]
        return CorruptedDomains(
            "corrupted", clean, None, domains=domains, family=self.family,
            frost_folder=self.frost_folder, seed=self.seed,
        )  # fmt: skip

    def layout(self, images: CorruptedDomains) -> Layout:
        """The layout in which the images are written."""
        folder, shape = Path(self.output).expanduser(), images.clean[0].shape
        if self.family == "cifar":
            return SeverityBlocks(folder, images.clean.labels, shape)
        return JpegFolders(folder, names_of(images.clean), self.severities, shape)

    def facts(self, images: CorruptedDomains) -> dict[str, Any]:
        """Facts that must agree between calls that write to the same folder."""
        return {
            "schema": SCHEMA, "clean": images.clean.describe(), "clean_digest": digest(images.clean), "seed": self.seed,
            "family": self.family, "frost_textures": name_frost_textures(self.frost_folder),
        }  # fmt: skip


def _is_class_folders(path: Path) -> bool:
    return path.is_dir() and not is_cifar_binary(path)


class Chunk(NamedTuple):
    """Some images of one corruption at one severity: a unit of work for a process."""

    corruption: str
    severity: int
    rows: range


class _Writer:
    """State of each process: the clean images and the layout."""

    def __init__(self, recipe: CorruptionRecipe) -> None:
        self.images = recipe.open()
        self.layout = recipe.layout(self.images)

    def write(self, chunk: Chunk) -> int:
        """Write the missing images of a chunk, and return its number of images."""
        corruption, severity, rows = chunk
        for index in rows:
            if not self.layout.has(corruption, severity, index):
                self.layout.write(corruption, severity, index, self.images.load(f"{corruption}/{severity}", index))
        return len(rows)


_writer: _Writer


def _begin(recipe: CorruptionRecipe) -> None:
    global _writer
    use_one_thread()  # there is one process per processor
    _writer = _Writer(recipe)


def _write(chunk: Chunk) -> int:
    return _writer.write(chunk)


def corrupt_files(recipe: CorruptionRecipe, console: Console, processes: int | None = None) -> None:
    """Write every corruption at every severity; the images do not depend on the number of processes.

    After an interruption, the same call continues where the earlier one stopped.

    Args:
        recipe: What to write, and where.
        console: Shows the progress.
        processes: Number of processes; None uses the number of processors.

    Raises:
        ValueError: If an image cannot be read or the folder holds other images.
        FileNotFoundError: If a path does not exist.
        WriteError: If the folder cannot be written, or the disk is too small.
    """
    writer, folder = _Writer(recipe), Path(recipe.output).expanduser()
    facts, layout = recipe.facts(writer.images), writer.layout
    for told in left_out_told(left_out_facts([writer.images.clean])):
        say(console, f"note: {told}", "yellow")
    missing = [name for name in recipe.corruptions if not layout.is_complete(name)]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_begun(folder, facts):
            needed = len(missing) * len(recipe.severities) * layout.num_bytes()
            check_space(folder, needed, "choose another --output, or fewer --domains or --severities")
        write_json(recipe_file(folder), facts)
        _write_classes(folder, layout)
    count, started = len(writer.images.clean), time.monotonic()
    with (
        writing(folder),
        get_context("spawn").Pool(processes, initializer=_begin, initargs=(recipe,)) as pool,
        progress_bar(console) as bar,
    ):
        task = bar.add_task("", total=len(missing) * len(recipe.severities) * count)
        for corruption in missing:
            bar.update(task, description=corruption)
            layout.start(corruption)
            for images in pool.imap_unordered(_write, _chunks(corruption, recipe.severities, count)):
                bar.advance(task, images)
            layout.finish(corruption)
            if not console.is_terminal:
                say(console, f"{corruption}: {count} images, {len(recipe.severities)} severities")
    written = len(missing) * len(recipe.severities) * count
    speed = written / max(time.monotonic() - started, 1e-9)
    say(console, f"{written} images in {folder}, {speed:.0f} per second")
    say(console, _how_to_read(recipe, writer))


def _chunks(corruption: str, severities: tuple[int, ...], count: int) -> Iterator[Chunk]:
    for severity in severities:
        for start in range(0, count, _CHUNK):
            yield Chunk(corruption, severity, range(start, min(start + _CHUNK, count)))


def _write_classes(folder: Path, layout: Layout) -> None:
    """Write the list of classes that ``dataset=imagenet_c`` needs for classes that are not ImageNet's."""
    if isinstance(layout, JpegFolders):
        folder.joinpath("classes.txt").write_text("\n".join(layout.classes) + "\n", encoding="utf-8")


def _how_to_read(recipe: CorruptionRecipe, writer: _Writer) -> str:
    height, width, _ = writer.images.clean[0].shape
    if recipe.family == "cifar":
        blocks = f"five blocks of {len(writer.images.clean)} images"
        largest = writer.images.clean.labels.max()
        if height != 32 or width != 32 or largest >= 100:
            return f"{blocks}; dataset=cifar10_c and cifar100_c take 32x32 pixels and at most 100 classes"
        name = "cifar10_c" if largest < 10 else "cifar100_c"
        return f"{blocks}; read them with dataset={name} dataset.root={recipe.output}"
    return (
        f"read it with dataset=imagenet_c dataset.root={recipe.output} dataset.image_size={min(height, width)} "
        f"dataset.classes={recipe.output}/classes.txt"
    )


def _is_begun(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether an earlier call has written to the folder; it must have written images of the same kind."""
    there = read_recipe(folder)
    if there is None:
        if any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty and was not written by this command: choose another --output")
        return False
    for key, value in facts.items():
        if there.get(key) != value:
            raise ValueError(f"{folder} already holds corrupted images that differ in {key}: choose another --output")
    return True
