"""Lightning DataModules: one does the work, a thin subclass per data set names it."""

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.data.named import CorruptedImages, ShapesC

__all__ = ["CorruptedImages", "ShapesC", "StreamDataModule", "schedule_for"]
