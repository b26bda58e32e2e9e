"""The embedded data set: procedural shapes under the published corruptions."""

from __future__ import annotations

from tta_bench.datasets.classification.corrupted import CorruptedDomains
from tta_bench.datasets.procedural.shapes import ShapesImages


def shapes_c(
    *,
    split: str = "test",
    num_images: int = 256,
    domains: str | list[str] = "common",
    severity: int = 5,
    family: str = "imagenet",
    num_source_images: int = 4000,
    seed: int = 0,
) -> CorruptedDomains:
    """The embedded data set: procedural shapes, 64x64, ten classes, under the corruptions of ImageNet-C.

    It serves to try things in minutes without a download. It is not a natural-image benchmark: errors and gains on
    it say nothing about ImageNet-C.

    Args:
        split: ``test``, or ``validation`` for choosing hyper-parameters on other images.
        num_images: Images per domain.
        domains: ``common`` (the 15), ``validation`` (the 4), or a list of corruption names.
        severity: 1 to 5.
        family: Constants of the published corruptions.
        num_source_images: Images of the source domain, for methods that need statistics or a warm-up.
        seed: Seed of the corruptions.

    Raises:
        ValueError: If an argument is wrong.
    """
    if split not in ("test", "validation"):
        raise ValueError(f"dataset.split must be test or validation, got {split!r}")
    if num_source_images < 1:
        raise ValueError(f"dataset.num_source_images must be at least 1, got {num_source_images}")
    clean, source = ShapesImages(split, num_images), ShapesImages("source", num_source_images)
    return CorruptedDomains(
        "shapes_c", clean, source, domains=domains, severity=severity, family=family, seed=seed
    )  # fmt: skip
