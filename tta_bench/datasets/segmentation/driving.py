"""Cityscapes and ACDC, in their published folder layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tta_bench.datasets.files.label_maps import IGNORE, NumberLabels
from tta_bench.datasets.segmentation.label_map_domains import (
    CorruptedSegmentation,
    Pair,
    SegmentationDomains,
    SegmentedFiles,
    segmentation_domains,
)
from tta_bench.files import existing

CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
CONDITIONS = ("fog", "night", "rain", "snow")
# ``labelIds`` of the 19 classes (cityscapesScripts, helpers/labels.py); all others are ignored.
_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_TRAIN_IDS = NumberLabels(dict(enumerate(range(len(CLASSES)))))
_LABEL_IDS = NumberLabels({i: _IDS.index(i) if i in _IDS else IGNORE for i in range(34)})


def acdc(
    *,
    root: str,
    split: str = "train",
    domains: str | list[str] | None = None,
    image_height: int | None = 540,
    num_images: int | None = None,
    source_images: str | None = None,
    corruptions: str | list[str] | None = None,
    severity: int = 5,
    family: str = "imagenet",
    frost_folder: str | None = None,
    seed: int = 0,
) -> SegmentationDomains | CorruptedSegmentation:
    """ACDC: driving in fog, at night, in rain and in snow, with the 19 classes of Cityscapes.

    Args:
        root: The folder with ``rgb_anon`` and ``gt``, as in the published archives; labels are read from the
            ``labelTrainIds`` files.
        split: ``train`` (400 images per condition, as used in the CTTA literature) or ``val``.
        domains: Conditions in order of appearance; None uses fog, night, rain, snow.
        image_height: Height to which images are resized, keeping the aspect ratio; 540 is half, as in the
            literature. Labels keep their published height (1080), and scores are resized to match.
        num_images: Use only this many images of each condition, evenly spaced in name order; None uses all.
        source_images: The root of Cityscapes, whose training images are the source domain.
        corruptions: Use all these images under corruptions instead: ``common``, ``validation``, a group such as
            ``weather``, or a list of names; each is a domain.
        severity: Severity of the corruptions, 1 to 5.
        family: Constants of the corruptions.
        frost_folder: The published frost textures; None generates textures.
        seed: Seed of the corruptions.

    Raises:
        FileNotFoundError: If a folder or a label file is missing.
        ValueError: If an argument is wrong.

    Source: Sakaridis et al., "ACDC: The Adverse Conditions Dataset with Correspondences for Semantic Driving Scene
    Understanding", ICCV 2021.
    """
    if split == "test":
        raise ValueError("the labels of ACDC's test images are not published: set dataset.split to train or val")
    names = CONDITIONS if domains is None else [domains] if isinstance(domains, str) else domains
    for name in names:
        if name not in CONDITIONS:
            raise ValueError(f"ACDC has no condition {name!r}; it has {', '.join(CONDITIONS)}")
    top, files = existing("dataset.root", root, "folder"), {}
    for name in names:
        images = _images(top, f"rgb_anon/{name}/{split}", "_rgb_anon.png")
        pairs = [Pair(top / image, _acdc_labels(top, image)) for image in images]
        files[name] = SegmentedFiles(pairs, _TRAIN_IDS, image_height, f"ACDC {split}")
    source = None
    if source_images is not None:
        source = _cityscapes(existing("dataset.source_images", source_images, "folder"), "train", image_height)
    return segmentation_domains(
        "acdc", files, source, CLASSES, {"split": split, "image_height": image_height}, num_images=num_images,
        corruptions=corruptions, severity=severity, family=family, frost_folder=frost_folder, seed=seed,
    )  # fmt: skip


def cityscapes(
    *,
    root: str,
    split: str = "val",
    domains: str | list[str] = "weather",
    image_height: int | None = 512,
    num_images: int | None = None,
    severity: int = 5,
    family: str = "imagenet",
    frost_folder: str | None = None,
    seed: int = 0,
) -> SegmentationDomains | CorruptedSegmentation:
    """Cityscapes: driving by day in good weather, 19 classes, corrupted on the fly.

    Args:
        root: The folder with ``leftImg8bit`` and ``gtFine``, as in the published archives; labels are read from the
            ``labelTrainIds`` files, or from the ``labelIds`` files if there are none.
        split: ``val`` (500 images) or ``train`` (2,975).
        domains: ``common``, ``validation``, a group such as ``weather``, or a list of corruptions, optionally with
            their own severity as in ``fog/3``; ``clean`` is allowed.
        image_height: Height to which images are resized, keeping the aspect ratio; 512 is half. Labels keep their
            published height (1024), and scores are resized to match.
        num_images: Use only this many images, evenly spaced in name order; None uses all.
        severity: 1 to 5.
        family: Constants of the corruptions.
        frost_folder: The published frost textures; None generates textures.
        seed: Seed of the corruptions.

    Raises:
        FileNotFoundError: If a folder or a label file is missing.
        ValueError: If an argument is wrong.

    Source: Cordts et al., "The Cityscapes Dataset for Semantic Urban Scene Understanding", CVPR 2016.
    """
    if split == "test":
        raise ValueError("the labels of Cityscapes' test images are not published: set dataset.split to train or val")
    top = existing("dataset.root", root, "folder")
    source = None if split == "train" else _cityscapes(top, "train", image_height)
    return segmentation_domains(
        "cityscapes", {split: _cityscapes(top, split, image_height)}, source, CLASSES, {}, num_images=num_images,
        corruptions=domains, severity=severity, family=family, frost_folder=frost_folder, seed=seed,
    )  # fmt: skip


def _cityscapes(root: Path, split: str, height: int | None) -> SegmentedFiles:
    images = _images(root, f"leftImg8bit/{split}", "_leftImg8bit.png")
    kind, read = "labelTrainIds", _TRAIN_IDS
    if not _cityscapes_labels(root, images[0], kind).is_file():
        kind, read = "labelIds", _LABEL_IDS
    pairs = [Pair(root / image, _cityscapes_labels(root, image, kind)) for image in images]
    return SegmentedFiles(pairs, read, height, f"Cityscapes {split}")


def _images(root: Path, folder: str, ending: str) -> Sequence[Path]:
    """Find the images in the subfolders of a folder, as sorted paths relative to the root.

    Raises:
        FileNotFoundError: If the folder contains no images.
    """
    found = sorted(path.relative_to(root) for path in (root / folder).glob(f"*/*{ending}"))
    if not found:
        there = ", ".join(sorted(path.name for path in root.glob("*")))
        raise FileNotFoundError(f"{root} holds no {folder}/*/*{ending}; it has: {there or 'nothing'}")
    return found


def _acdc_labels(root: Path, image: Path) -> Path:
    name = image.name.replace("_rgb_anon.png", "_gt_labelTrainIds.png")
    return root.joinpath("gt", *image.parts[1:-1], name)


def _cityscapes_labels(root: Path, image: Path, kind: str) -> Path:
    name = image.name.replace("_leftImg8bit.png", f"_gtFine_{kind}.png")
    return root.joinpath("gtFine", *image.parts[1:-1], name)
