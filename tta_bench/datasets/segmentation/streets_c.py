"""streets_c: procedural street scenes by day, in fog, at night, in rain and in snow."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tta_bench.datasets.procedural.street_scenes import CLASSES, Scene, render_scene
from tta_bench.datasets.procedural.street_weather import WEATHER
from tta_bench.datasets.segmentation.label_map_domains import SegmentationDomains
from tta_bench.suggestions import did_you_mean


@lru_cache(maxsize=128)  # a street is rendered once for its labels and all its weathers
def cached_scene(split: str, index: int) -> Scene:
    """Street ``index`` of a split, cached; it is shared, so callers must not modify it."""
    return render_scene(split, index)


class StreetScenes:
    """The first ``num_images`` streets of a split in one weather.

    Args:
        split: ``train``, ``source``, ``validation`` or ``test``.
        num_images: Number of images.
        weather: A key of ``WEATHER``.
        seed: Seed of the weather; streets depend on (split, index) only.

    Raises:
        ValueError: If ``num_images`` is below 1.
    """

    def __init__(self, split: str, num_images: int, weather: str = "day", seed: int = 0) -> None:
        if num_images < 1:
            raise ValueError(f"dataset.num_images must be at least 1, got {num_images}")
        self.split, self.weather, self.seed = split, weather, seed
        self.labels = np.zeros(num_images, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, zlib.crc32(f"{self.split} {self.weather}".encode()), index])
        image = WEATHER[self.weather](cached_scene(self.split, index), rng)
        return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8)

    def label_map(self, index: int) -> np.ndarray:
        """Classes (128, 256) uint8 of street ``index``, 255 for the hood of the car that carries the camera."""
        return cached_scene(self.split, index).labels.copy()  # the original belongs to the cached scene

    def describe(self) -> str:
        """Split, weather and number of images."""
        return f"procedural streets ({self.split}, {self.weather}, {len(self)} images of 128x256 pixels)"


def streets_c(
    *,
    split: str = "test",
    num_images: int = 64,
    domains: str | Sequence[str] = ("day", "fog", "night", "rain", "snow"),
    seed: int = 0,
) -> SegmentationDomains:
    """The embedded data set for segmentation: procedural streets, 128x256, eight classes, in five weathers.

    It serves to try things in minutes without a download. Scores on it say nothing about ACDC.

    Args:
        split: ``test``, or ``validation`` for choosing hyper-parameters on other streets.
        num_images: Images per domain; every domain shows the same streets.
        domains: Weathers, in their usual order.
        seed: Seed of the weathers.

    Raises:
        ValueError: If an argument is wrong.
    """
    if split not in ("test", "validation"):
        raise ValueError(f"dataset.split must be test or validation, got {split!r}")
    names = (domains,) if isinstance(domains, str) else tuple(domains)
    if not names:
        raise ValueError("dataset.domains is empty: name at least one weather")
    for name in names:
        if name not in WEATHER:
            raise ValueError(f"streets_c has no weather {name!r}{did_you_mean(name, WEATHER)}")
    images = {name: StreetScenes(split, num_images, name, seed) for name in names}
    return SegmentationDomains(
        "streets_c", images, StreetScenes("source", 400), CLASSES, {"split": split, "seed": seed}
    )
