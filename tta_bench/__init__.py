"""tta_bench: a PyTorch Lightning benchmark for continual test-time adaptation.

Nothing heavy is imported until a name is used, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "TTAMethod": "tta_bench.methods.base",
    "PredictionTiming": "tta_bench.types",
    "SourceNeed": "tta_bench.types",
    "create_method": "tta_bench.create",
    "load_model": "tta_bench.models.loading.load_model",
    "make_stream": "tta_bench.streams",
}
_PACKAGES = ("callbacks", "data", "functional", "methods", "models", "streams", "testing")

__all__ = [
    "PredictionTiming",
    "SourceNeed",
    "TTAMethod",
    "create_method",
    "load_model",
    "make_stream",
]

if TYPE_CHECKING:
    from tta_bench.create import create_method
    from tta_bench.methods.base import TTAMethod
    from tta_bench.models.loading.load_model import load_model
    from tta_bench.streams import make_stream
    from tta_bench.types import PredictionTiming, SourceNeed


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"tta_bench.{name}")
    raise AttributeError(f"module 'tta_bench' has no attribute {name!r}")
