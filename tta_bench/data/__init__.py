"""Lightning DataModules: a general one, and a thin subclass per data set."""

from tta_bench.data.datamodule import SourceBatches, StreamDataModule, schedule_for
from tta_bench.data.named import (
    ACDC,
    Cifar10C,
    Cifar100C,
    Cityscapes,
    CorruptedImages,
    ImageFolder,
    ImageNetC,
    Manifest,
    Packed,
    ScenesC,
    SegmentationFolder,
    ShapesC,
    StreetsC,
)

__all__ = [
    "ACDC",
    "Cifar10C",
    "Cifar100C",
    "Cityscapes",
    "CorruptedImages",
    "ImageFolder",
    "ImageNetC",
    "Manifest",
    "Packed",
    "ScenesC",
    "SegmentationFolder",
    "ShapesC",
    "SourceBatches",
    "StreamDataModule",
    "StreetsC",
    "schedule_for",
]
