"""Load an adapted model from a run's folder, and predict images with it."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from tta_bench.callbacks.save_adapted import STATE
from tta_bench.config.compose import build
from tta_bench.config.words import ConfigError
from tta_bench.datasets.classification.manifest import manifest
from tta_bench.experiments.run import build_method
from tta_bench.files import writing
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.class_subset import keep_classes
from tta_bench.types import OutputKind


def load_adapted(folder: str | Path) -> TTAMethod:
    """The method of a run in the state that ``save_adapted`` saved, ready for ``method(images)``, which adapts on.

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
    place = Path(folder).expanduser()
    place = place if (place / STATE).is_file() else place / "adapted"
    run = place.parent
    if not (place / STATE).is_file():
        raise FileNotFoundError(f"there is no adapted model in {folder}: run it again with save_adapted=last")
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
        ValueError: If the images cannot be read.
    """
    method = load_adapted(folder)
    found = Path(folder) if (Path(folder) / "config.yaml").is_file() else Path(folder).parent
    dataset = OmegaConf.load(found / "config.yaml").dataset
    cut: dict[str, Any] = {key: dataset.get(key) for key in ("image_size", "resize")}  # as those of the run were
    if dataset.get("interpolation"):
        cut["interpolation"] = dataset.interpolation
    where = {"file" if images.is_file() else "images": str(images)}
    data = manifest(**where, **cut)  # type: ignore[arg-type]
    ids, indices, _ = data.arrival_order()
    state = copy.deepcopy(method.adaptation_state())
    rows = []
    for start in range(0, len(ids), batch_size):
        part = [(data.domains[d], int(i)) for d, i in zip(ids, indices, strict=True)][start : start + batch_size]
        pixels = np.stack([data.load(*place) for place in part])
        scores = method(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()).double()
        probabilities = scores.softmax(dim=1) if method.output_kind is OutputKind.LOGITS else scores
        confidence, predicted = probabilities.max(dim=1)
        named = [data.path(*place) for place in part]
        rows += list(zip(named, predicted.tolist(), confidence.tolist(), strict=True))
        if not adapt:
            method.load_adaptation_state(copy.deepcopy(state))
    with writing(output), output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "predicted", "confidence"))
        writer.writerows(rows)
    return len(rows)
