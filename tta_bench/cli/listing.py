"""Tables of the available methods, settings, data sets and models."""

from __future__ import annotations

import inspect
import re
from itertools import takewhile

from hydra_zen import get_target
from rich.console import RenderableType
from rich.table import Table

from tta_bench.config.compose import compose_run, compose_stream, options
from tta_bench.config.registry import config_folder, register_all, register_light
from tta_bench.streams import KINDS, PRESETS

MODELS = {
    "timm": "Any timm model, by its full tag: model.name=...",
    "local": "Your own weights, for a network described in a yaml: model.checkpoint=... model.config=...",
    "segformer": "A SegFormer, from your own weights or those of mmsegmentation: model.checkpoint=...",
}


def listing(group: str) -> RenderableType:
    """The options of a configuration group, each with a one-sentence description.

    Args:
        group: ``method``, ``setting``, ``dataset`` or ``model``.
    """
    if group == "method":
        from tta_bench.cli.method_table import method_table

        return method_table()
    register_light() if group in ("setting", "dataset") else register_all()
    table = Table("name", "description")
    for name in options(group):
        table.add_row(name, _sentence(group, name))
    return table


def _sentence(group: str, name: str) -> str:
    if sentence := comment(group, name):
        return sentence
    if group == "setting":
        kind = compose_stream([f"setting={name}"]).config.setting.kind
        return _first_sentence(KINDS[kind]) if name == kind else f"{_preset(name)}."
    if group == "dataset":
        return _first_sentence(get_target(compose_stream([f"dataset={name}"]).config.dataset))
    return MODELS.get(name) or _first_sentence(get_target(compose_run([f"model={name}"]).config.model))


def comment(group: str, name: str) -> str:
    """The first sentence of the comment that heads an option's yaml file; empty if there is none."""
    file = config_folder() / group / f"{name}.yaml"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    head = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"(?<=\.)\s+(?=[A-Z])", head)[0]


def _preset(name: str) -> str:
    kind, values = PRESETS[name]
    return f"{kind} with {', '.join(f'{key}={value}' for key, value in values.items())}"


def _first_sentence(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
