"""Images per second from JPEG files, CIFAR-C's arrays and packed memory maps, in the order of a stream.

    python benchmarks/speed/data.py
    python benchmarks/speed/data.py --root images/ --workers 0 4 8

Without ``--root``, JPEG files of the embedded shapes at 256 pixels are written first. Every line is the stream of one
data set in random order, up to the tensors that go to the device; ``packed`` is the JPEG files after ``tta-bench data
pack``. All files have just been written or read, so that the speed of the disk is not included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.base import DomainDataset
from tta_bench.datasets.classification.cifar_c import cifar10_c
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.packed import packed
from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.prepare.pack import pack


def write_jpegs(root: Path, images: int) -> Path:
    for i in range(images):
        file = root / "shapes" / str(label(i)) / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render("test", i, 256)).save(file, quality=90)
    return root


def write_cifar(root: Path) -> Path:
    root.mkdir()
    pixels = np.lib.format.open_memmap(root / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    for block in pixels.reshape(50, 1000, 32, 32, 3):
        block[:] = np.random.default_rng(0).integers(0, 256, block.shape, dtype=np.uint8)
    np.save(root / "labels.npy", np.arange(50_000) % 10)
    return root


def measure(name: str, domains: DomainDataset, workers: int, batch_size: int) -> None:
    module = StreamDataModule(domains, schedule_for(domains, "csc", batch_size=batch_size), num_workers=workers)
    batches = iter(module.test_dataloader())
    next(batches)  # excludes the start of the loader
    started = time.perf_counter()
    images = sum(len(batch.images) for batch in batches)
    print(
        f"{name:8} {workers:2} workers  {images / (time.perf_counter() - started):9.0f} images per second", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="domain folders of class folders, instead of the embedded shapes")
    parser.add_argument("--images", type=int, default=2000, help="number of shapes")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = args.root or write_jpegs(Path(folder) / "jpeg", args.images)
        jpegs = image_folder(root=str(root))
        started = time.perf_counter()
        pack(jpegs, Path(folder) / "packed", Console(quiet=True))
        images = sum(len(jpegs.labels(domain)) for domain in jpegs.domains)
        print(f"packing  {images / (time.perf_counter() - started):21.0f} images per second")
        sets = {
            "jpeg": jpegs,
            "packed": packed(root=f"{folder}/packed"),
            "npy": cifar10_c(root=str(write_cifar(Path(folder) / "cifar")), domains=["fog"]),
        }
        for name, domains in sets.items():
            for workers in args.workers:
                measure(name, domains, workers, args.batch_size)


if __name__ == "__main__":
    main()
