"""Descriptions of the options of each configuration group, collected from the classes and stored in a file.

Collecting them takes seconds, so ``tta-bench list`` reads the file, which ``make docs`` writes.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from itertools import takewhile

from hydra_zen import get_target

from tta_bench.cli.known import FILE, GROUPS
from tta_bench.config import FOLDER_VARIABLE
from tta_bench.config.compose import compose_run, compose_stream, options
from tta_bench.config.registry import config_folder, register_all, register_light
from tta_bench.config.user_folder import user_folder
from tta_bench.streams import KINDS, PRESETS

MODELS = {
    "timm": "Any timm model, by its full tag: model.name=...",
    "local": "Your own weights, for a network described in a yaml: model.checkpoint=... model.config=...",
    "segformer": "A SegFormer, from your own weights or those of mmsegmentation: model.checkpoint=...",
}


def described(group: str) -> list[tuple[str, str]]:
    """Name and description of each option of a group, including those of the user's folder; methods come first."""
    if group == "method":
        from tta_bench.cli.method_table import variants
        from tta_bench.methods import METHODS

        methods = [(name, _first_sentence(cls)) for name, cls in METHODS.items()]
        return methods + [(name, f"{of}: {comment('method', name)}") for name, of in variants()]
    register_light() if group in ("setting", "dataset") else register_all()
    return [(name, _sentence(group, name)) for name in options(group)]


def write_options() -> None:
    """Write the file that ``tta-bench list`` reads, ignoring the user's folder."""
    os.environ.pop(FOLDER_VARIABLE, None)
    rows = {group: described(group) for group in GROUPS}
    FILE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def comment(group: str, name: str) -> str:
    """The first sentence of the comment at the top of an option's yaml file; empty if there is none."""
    files = [home / group / f"{name}.yaml" for home in (user_folder(()), config_folder()) if home]
    file = next((file for file in files if file.is_file()), None)
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    head = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"(?<=\.)\s+(?=[A-Z])", head)[0]


def _sentence(group: str, name: str) -> str:
    if sentence := comment(group, name):
        return sentence
    if group == "setting":
        kind = compose_stream([f"setting={name}"]).config.setting.kind
        return _first_sentence(KINDS[kind]) if name == kind else f"{_preset(name)}."
    if group == "dataset":
        return _first_sentence(get_target(compose_stream([f"dataset={name}"]).config.dataset))
    return MODELS.get(name) or _first_sentence(get_target(compose_run([f"model={name}"]).config.model))


def _preset(name: str) -> str:
    kind, values = PRESETS[name]
    return f"{kind} with {', '.join(f'{key}={value}' for key, value in values.items())}"


def _first_sentence(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")


if __name__ == "__main__":
    write_options()
