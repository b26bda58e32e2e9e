"""Cache the result of a method's source phase on disk, under a key of everything that it depends on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as L
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tta_bench.console import progress_bar, say
from tta_bench.data.datamodule import SourceBatches, StreamDataModule
from tta_bench.datasets.base import CleanImages, DomainDataset, SegmentedImages, digest, label_digest
from tta_bench.experiments.resume import code_sha256
from tta_bench.files import check_space, writing
from tta_bench.methods.base import TTAMethod
from tta_bench.types import SourceNeed


def fit_or_load_source(
    method: TTAMethod, data: StreamDataModule, cache: Path, trainer: L.Trainer, console: Console
) -> dict[str, Any]:
    """Run a method's source phase, or load its result from the cache.

    Returns:
        ``source_seconds``, ``source_cached`` and the number of forward and backward passes (``source_forward_samples``,
        ``source_backward_samples``) for the result; the costs of the stream do not include them.

    Raises:
        ValueError: If there are too few source images.
    """
    facts = {"source_seconds": 0.0, "source_cached": False, "source_forward_samples": 0, "source_backward_samples": 0}
    if method.source_need is SourceNeed.NOTHING:
        return facts
    check_source(method, data.domains)
    started, meter = time.perf_counter(), method.backbone.meter
    method.configure_model()
    path = source_file(method, data, cache)
    cached = _load(method, path)
    if not cached:
        with _alone(path, console):
            cached = _load(method, path)  # another process may have run it meanwhile
            if not cached:
                _fit(method, data, path, trainer, console)
    return {
        "source_seconds": time.perf_counter() - started,
        "source_cached": cached,
        "source_forward_samples": meter.forward_samples,
        "source_backward_samples": meter.backward_samples,
    }


def _fit(method: TTAMethod, data: StreamDataModule, path: Path, trainer: L.Trainer, console: Console) -> None:
    title = f"{type(method).__name__}: source phase"
    say(console, f"{title} ...", "dim")
    method.to(trainer.strategy.root_device)
    loader = data.source_dataloader(method.source_need)
    method.fit_source(Watched(loader, title, console, method.hparams.get("warmup_steps")))
    state = {key: value.detach().cpu().contiguous() for key, value in method.source_state().items()}
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    with writing(path):
        check_space(path.parent, sum(value.nbytes for value in state.values()), "choose another cache_dir=...")
        save_file(state, draft)
        draft.replace(path)


@contextmanager
def _alone(path: Path, console: Console) -> Iterator[None]:
    """Wait until no other process runs the source phase of this file.

    Raises:
        WriteError: If the lock file cannot be opened.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(console, "waiting for another process, which runs the same source phase", "dim")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks: every process runs it
            pass
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # loader processes have inherited it


def check_source(method: TTAMethod, domains: DomainDataset) -> None:
    """Check early that a data set has enough source images.

    Raises:
        ValueError: If there are none, or fewer than the method requires.
    """
    if not (wanted := method.least_source_images()):
        return
    if (available := len(domains.source_images())) < wanted:
        raise ValueError(
            f"{type(method).__name__} needs {wanted} source images, but {domains.name} has {available}: "
            "lower num_source"
        )


def source_file(method: TTAMethod, data: StreamDataModule, cache: Path) -> Path:
    """The cache file of a method's source state."""
    return cache.expanduser() / "source" / f"{_key(method, data)}.safetensors"


class Watched:
    """Source batches with a progress bar over all passes; without a terminal, periodic lines.

    Args:
        loader: The batches.
        title: Title of the bar.
        console: Where the progress is shown.
        total: Number of batches over all passes, if known.
        every: Seconds between two lines.
    """

    def __init__(
        self, loader: SourceBatches, title: str, console: Console, total: int | None = None, every: float = 30.0
    ) -> None:
        self.loader, self.title, self.console, self.total, self.every = loader, title, console, total, every
        self.batches, self.printed = 0, time.monotonic()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        with progress_bar(self.console) as bar:
            total = self.total or self.batches + len(self.loader)
            task = bar.add_task(self.title, total=total, completed=self.batches)
            for batch in self.loader:
                yield batch
                self.batches += 1
                bar.update(task, advance=1)
                if not self.console.is_terminal and time.monotonic() - self.printed > self.every:
                    self.printed = time.monotonic()
                    say(self.console, f"{self.title}: batch {self.batches} of {total}")


def _load(method: TTAMethod, path: Path) -> bool:
    """Load the cached file and return whether this succeeded; a damaged file is replaced later."""
    try:
        method.load_source_state(load_file(path))
    except (OSError, SafetensorError, KeyError):
        return False
    return True


def _digest(images: CleanImages) -> str:
    return digest(images) + (label_digest(cast(SegmentedImages, images)) if hasattr(images, "label_map") else "")


def _key(method: TTAMethod, data: StreamDataModule) -> str:
    backbone = method.backbone
    parts = {
        "method": f"{type(method).__module__}.{type(method).__qualname__}",
        "code": code_sha256(method),
        "settings": {name: method.hparams[name] for name in method.source_settings},
        "weights": backbone.weights_sha256,
        "kept_classes": backbone.kept_classes,
        "dtype": str(backbone.dtype),
        "preprocess": (backbone.source_preprocess or backbone.preprocess).describe(),
        "image_size": backbone.image_size,
        "images": _digest(data.domains.source_images()),
        "order_seed": data.seed,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
