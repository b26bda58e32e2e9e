"""Load an adapted model from a run's folder, and predict images with it."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path

import torch
from omegaconf import OmegaConf

from tta_bench.callbacks.save_adapted import STATE
from tta_bench.config.compose import build
from tta_bench.config.words import ConfigError
from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.classification.manifest import manifest
from tta_bench.experiments.run import build_method
from tta_bench.files import existing, writing
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.class_subset import keep_classes


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


def predict(folder: Path, images: Path, output: Path, *, adapt: bool, batch_size: int) -> int:
    """Predict images with the adapted model of a run, and write a table; returns the number of images.

    Args:
        folder: The run, as for :func:`load_adapted`.
        images: A folder of images, or a table with a column ``path``, as for ``dataset=manifest``.
        output: The table (.csv): path, predicted class, confidence.
        adapt: Whether the model learns from the images; otherwise every batch meets the saved state.
        batch_size: Images per batch.

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
    dataset = OmegaConf.load(_saved(folder).parent / "config.yaml").dataset
    cut = {key: dataset[key] for key in ("image_size", "resize", "interpolation") if key in dataset}  # as in the run
    domains = manifest(file=str(images), **cut) if images.is_file() else manifest(images=str(images), **cut)
    data = StreamDataModule(domains, schedule_for(domains, "as_given", batch_size=batch_size))
    state = copy.deepcopy(method.adaptation_state())
    rows: list[tuple[str, int, float]] = []
    for batch, step in zip(data.test_dataloader(), data.schedule, strict=True):
        probabilities = method.output_kind.probabilities(method(batch.images).double())
        confidence, predicted = probabilities.max(dim=1)
        ids = zip(step.domain_ids, step.indices, strict=True)
        paths = [domains.path(data.schedule.domains[d], int(i)) for d, i in ids]
        rows += zip(paths, predicted.tolist(), confidence.tolist(), strict=True)
        if not adapt:
            method.load_adaptation_state(copy.deepcopy(state))
    with writing(output), output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "predicted", "confidence"))
        writer.writerows(rows)
    return len(rows)


def _saved(folder: str | Path) -> Path:
    """The folder of the saved model: ``folder`` itself, or ``adapted`` in it."""
    place = existing("run", folder, "folder")
    place = place if (place / STATE).is_file() else place / "adapted"
    if not (place / STATE).is_file():
        raise FileNotFoundError(f"there is no adapted model in {folder}: run it again with save_adapted=last")
    return place
