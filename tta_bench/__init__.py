"""tta_bench: a PyTorch Lightning benchmark for continual test-time adaptation.

Heavy imports are deferred until a name is used, so that the command line responds immediately.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tta_bench import callbacks, data, functional, methods, models, streams, testing
    from tta_bench.api import (
        Runs,
        bench,
        create_method,
        list_datasets,
        list_methods,
        list_models,
        list_settings,
        run,
        tuned_values,
    )
    from tta_bench.experiments.adapted import load_adapted
    from tta_bench.methods.base import TTAMethod
    from tta_bench.models.loading.load_model import load_model
    from tta_bench.models.loading.segformer import load_segformer
    from tta_bench.report.runs import RunRecord
    from tta_bench.streams import make_stream
    from tta_bench.types import PredictionTiming, SourceNeed

__version__ = "0.1.0"

__all__ = [
    "PredictionTiming",
    "RunRecord",
    "Runs",
    "SourceNeed",
    "TTAMethod",
    "bench",
    "callbacks",
    "create_method",
    "data",
    "functional",
    "list_datasets",
    "list_methods",
    "list_models",
    "list_settings",
    "load_adapted",
    "load_model",
    "load_segformer",
    "make_stream",
    "methods",
    "models",
    "run",
    "streams",
    "testing",
    "tuned_values",
]

_HOMES = {
    "TTAMethod": "methods.base",
    "PredictionTiming": "types",
    "SourceNeed": "types",
    "RunRecord": "report.runs",
    "load_adapted": "experiments.adapted",
    "load_model": "models.loading.load_model",
    "load_segformer": "models.loading.segformer",
    "make_stream": "streams",
    **dict.fromkeys(
        ("Runs", "bench", "create_method", "list_datasets", "list_methods", "list_models", "list_settings",
         "run", "tuned_values"), "api"
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tta_bench.{_HOMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"tta_bench.{name}")
    raise AttributeError(f"module 'tta_bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
