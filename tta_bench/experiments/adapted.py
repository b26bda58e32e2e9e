"""Load an adapted model from a run's folder, and predict images with it."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from omegaconf import OmegaConf
from rich.console import Console

from tta_bench.callbacks.save_adapted import STATE
from tta_bench.config.compose import build
from tta_bench.config.words import ConfigError
from tta_bench.console import progress_bar
from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.classification.manifest import manifest
from tta_bench.experiments.run import build_method
from tta_bench.experiments.trainer import make_trainer
from tta_bench.files import existing, writing
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.class_subset import keep_classes
from tta_bench.types import StepOutput, StreamBatch


def load_adapted(folder: str | Path) -> TTAMethod:
    """The method of a run with ``save_adapted``, in its saved state; ``method(images)`` continues to adapt.

    Args:
        folder: The folder of the run, or one of the ``adapted`` folders in it.

    Raises:
        FileNotFoundError: If there is no saved model.
        ValueError: If the source model that can be loaded now has other weights than that of the run.

    Example:
        >>> import tta_bench as tta
        >>> method = tta.load_adapted("runs/manifest/as_given/tent/seed0-1a2b3c4d")  # doctest: +SKIP
        >>> scores = method(images)  # doctest: +SKIP
    """
    place = _saved(folder)
    run = place.parent
    config, result = OmegaConf.load(run / "config.yaml"), json.loads((run / "result.json").read_text(encoding="utf-8"))
    backbone: Backbone = build(config.model)
    if (kept := result["data"].get("model_classes")) is not None:
        keep_classes(backbone, kept)
    if backbone.weights_sha256 != result["weights_sha256"]:
        raise ConfigError(f"{run} was run with other source weights than model.checkpoint or model.name now give")
    method = build_method(config.method, backbone, int(config.seed))
    method.load_adaptation_state(torch.load(place / STATE, map_location="cpu", weights_only=True))
    return method


class _Table(L.Callback):
    """Writes a row per image, and shows the progress.

    Args:
        output: The table.
        adapt: Whether the method keeps what it learns; otherwise every batch meets the state at the start.
        console: Where to draw the progress.
    """

    def __init__(self, output: Path, adapt: bool, console: Console) -> None:
        self.output, self.adapt = output, adapt
        self._progress = progress_bar(console)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TTAMethod)
        self._state = None if self.adapt else copy.deepcopy(pl_module.adaptation_state())
        self._task = self._progress.add_task("predicting", total=sum(trainer.num_test_batches))
        self._progress.start()
        self._append([("path", "predicted", "confidence")])

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: StepOutput, batch: StreamBatch, *_: Any
    ) -> None:
        assert isinstance(pl_module, TTAMethod)
        confidence, predicted = pl_module.output_kind.probabilities(outputs.scores.double()).max(dim=1)
        data = trainer.datamodule
        step = data.schedule[batch.step]
        ids = zip(step.domain_ids, step.indices, strict=True)
        paths = [data.domains.path(data.schedule.domains[d], int(i)) for d, i in ids]
        self._append(zip(paths, predicted.tolist(), confidence.tolist(), strict=True))
        if self._state is not None:
            pl_module.load_adaptation_state(self._state)
        self._progress.update(self._task, advance=1)

    def _append(self, rows: Iterable[tuple[str, Any, Any]]) -> None:
        """Rows are on disk with their batch, so that an interruption leaves those before it."""
        with writing(self.output), self.output.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._progress.stop()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._progress.stop()


def predict(folder: Path, images: Path, output: Path, *, adapt: bool, batch_size: int, console: Console) -> int:
    """Predict images with the adapted model of a run, and write a table; returns the number of images.

    Device and precision are those of the run.

    Args:
        folder: The run, as for :func:`load_adapted`.
        images: A folder of images, or a table with a column ``path``, as for ``dataset=manifest``.
        output: The table (.csv): path, predicted class, confidence.
        adapt: Whether the model learns from the images; otherwise every batch meets the saved state.
        batch_size: Images per batch.
        console: Where to draw the progress.

    Raises:
        FileNotFoundError: If there is no such model or no such images.
        ValueError: If the images cannot be read, or the output exists.
    """
    if output.exists():
        raise ValueError(f"{output} already exists: remove it, or choose another output=...")
    existing("images", images)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    method = load_adapted(folder)
    config = OmegaConf.load(_saved(folder).parent / "config.yaml")
    cut = {key: config.dataset[key] for key in ("image_size", "resize", "interpolation") if key in config.dataset}
    domains = manifest(file=str(images), **cut) if images.is_file() else manifest(images=str(images), **cut)
    data = StreamDataModule(domains, schedule_for(domains, "as_given", batch_size=batch_size))
    trainer = make_trainer(OmegaConf.merge(config.trainer, {"devices": 1}), [_Table(output, adapt, console)])
    method.start_from(method.adaptation_state())
    trainer.test(method, datamodule=data, verbose=False)
    return data.schedule.num_samples


def _saved(folder: str | Path) -> Path:
    """The folder of the saved model: ``folder`` itself, or ``adapted`` in it."""
    place = existing("run", folder, "folder")
    place = place if (place / STATE).is_file() else place / "adapted"
    if not (place / STATE).is_file():
        raise FileNotFoundError(f"there is no adapted model in {folder}: run it again with save_adapted=last")
    return place
