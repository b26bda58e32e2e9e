"""The contract of all methods, as ready-made checks for new methods: ``check_method(MyMethod)``."""

from tta_bench.testing.checks import CHECKS, check_method, ready, run_stream
from tta_bench.testing.toy import (
    NUM_CLASSES,
    ToyDomains,
    ToyImages,
    batches,
    toy_backbone,
    toy_cnn,
    toy_data,
    toy_segformer,
)

__all__ = [
    "CHECKS",
    "NUM_CLASSES",
    "ToyDomains",
    "ToyImages",
    "batches",
    "check_method",
    "ready",
    "run_stream",
    "toy_backbone",
    "toy_cnn",
    "toy_data",
    "toy_segformer",
]
