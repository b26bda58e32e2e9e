"""Images per second of each corruption on one processor, and of ``tta-bench data corrupt`` with all of them.

    python benchmarks/speed/corrupt.py
    python benchmarks/speed/corrupt.py --family cifar --images 200 --processes 8

The images are smooth and random, in the size of the family. If the package ``imagecorruptions`` (or
``imagecorruptions-imaug``) is installed, which has the published ImageNet functions, its speed is shown beside ours;
the published script itself corrupts one image at a time in each worker process and also needs ImageMagick.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from tta_bench.datasets.corruptions import CORRUPTIONS, corrupt
from tta_bench.datasets.files.corrupted_copies import use_one_thread
from tta_bench.prepare.corrupt import CorruptionRecipe, corrupt_files

SIDES = {"imagenet": 224, "tiny": 64, "cifar": 32}


def pictures(count: int, side: int) -> np.ndarray:
    coarse = np.random.default_rng(0).integers(0, 256, (count, 9, 9, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC)) for one in coarse])


def per_second(function: Callable[[np.ndarray], object], images: np.ndarray) -> float:
    function(images[0])  # warm-up: builds tables and compiles loops
    started = time.perf_counter()
    for image in images:
        function(image)
    return len(images) / (time.perf_counter() - started)


def published(name: str) -> Callable[[np.ndarray], object] | None:
    try:
        theirs = importlib.import_module("imagecorruptions")
    except ImportError:
        return None
    return lambda image: theirs.corrupt(image, severity=3, corruption_name=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=SIDES, default="imagenet")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--processes", type=int, help="processes of the command; by default one per processor")
    args = parser.parse_args()
    use_one_thread()
    images, rng = pictures(args.images, SIDES[args.family]), np.random.default_rng(0)
    print(f"{'severity 3, one processor':26}{'ours':>9}{'published':>11}  images per second")
    for name in CORRUPTIONS:
        ours = per_second(lambda image, name=name: corrupt(image, name, 3, family=args.family, rng=rng), images)
        theirs = published(name) if args.family == "imagenet" else None
        beside = f"{per_second(theirs, images):11.0f}" if theirs else f"{'-':>11}"
        print(f"{name:26}{ours:9.0f}{beside}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "clean.npz"
        np.savez(file, images=images, labels=np.zeros(len(images), np.int64))
        print("\nthe command, 15 corruptions at 5 severities, files written:")
        started = time.perf_counter()
        corrupt_files(CorruptionRecipe(str(file), f"{folder}/out", args.family), Console(quiet=True), args.processes)
        print(f"{15 * 5 * len(images) / (time.perf_counter() - started):.0f} images per second")


if __name__ == "__main__":
    main()
