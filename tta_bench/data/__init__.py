"""Lightning DataModules: one does the work, a thin subclass per data set names it."""

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.data.named import Cifar10C, Cifar100C, CorruptedImages, ImageFolder, ImageNetC, Packed, ShapesC

__all__ = [
    "Cifar10C",
    "Cifar100C",
    "CorruptedImages",
    "ImageFolder",
    "ImageNetC",
    "Packed",
    "ShapesC",
    "StreamDataModule",
    "schedule_for",
]
