"""Source statistics are measured once and kept on disk, under a key of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tta_bench.data.datamodule import StreamDataModule
from tta_bench.domains.clean import digest
from tta_bench.methods.base import TTAMethod
from tta_bench.types import SourceNeed


def fit_or_load_source(
    method: TTAMethod, data: StreamDataModule, cache: Path, trainer: L.Trainer, console: Console
) -> dict[str, Any]:
    """Give the method what it needs of the source domain, from the cache if it is there.

    Returns:
        ``source_seconds`` and ``source_cached`` for the result; the stream's costs do not include them.
    """
    if method.source_need is SourceNeed.NOTHING:
        return {"source_seconds": 0.0, "source_cached": False}
    started = time.perf_counter()
    method.configure_model()
    path = cache.expanduser() / "source" / f"{_key(method, data)}.safetensors"
    cached = _load(method, path)
    if not cached:
        console.print(f"measuring the source domain for {type(method).__name__} ...", style="dim")
        method.to(trainer.strategy.root_device)
        method.fit_source(data.source_dataloader(method.source_need))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        save_file({k: v.detach().cpu().contiguous() for k, v in method.source_state().items()}, draft)
        draft.replace(path)
    return {"source_seconds": time.perf_counter() - started, "source_cached": cached}


def _load(method: TTAMethod, path: Path) -> bool:
    """Whether the cached file was there and could be read; a damaged one is measured anew."""
    try:
        method.load_source_state(load_file(path))
    except (OSError, SafetensorError, KeyError):
        return False
    return True


def _key(method: TTAMethod, data: StreamDataModule) -> str:
    backbone = method.backbone
    parts = {
        "method": f"{type(method).__module__}.{type(method).__qualname__}",
        "settings": {name: method.hparams[name] for name in method.source_settings},
        "weights": backbone.weights_sha256,
        "dtype": str(backbone.dtype),
        "mean": backbone.normalize.mean.tolist(),
        "std": backbone.normalize.std.tolist(),
        "images": digest(data.domains.source_images()),
        "order_seed": data.seed,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
