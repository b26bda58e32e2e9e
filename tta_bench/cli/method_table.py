"""What the classes of the methods say of themselves, for docs/methods.md and ``list methods NAME``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

import timm
import torch
from hydra_zen import get_target
from torch import nn

from tta_bench.config.compose import compose_run, options
from tta_bench.config.registry import register_all
from tta_bench.methods import METHODS, TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.timm_cnn import TimmBackbone
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.types import SourceNeed

COLUMNS = (
    "name", "paper", "prediction", "passes per sample", "source data",
    "trainable", "added", "segmentation", "defaults",
)  # fmt: skip
INTRODUCTION = """\
# Methods

Generated from the classes by `make docs`; do not edit.

- *Prediction*: which of a batch's updates are made before its prediction.
- *Source data*: what the method uses besides the source weights. Methods that use **labeled images** have an advantage.
- *Trainable* and *added*: number of scalars on a ViT-B/16 for 224 pixels and 1,000 classes (a ResNet-50 for methods
  that require batch norm), before the stream. Copies of the network, such as teachers, are not counted as added.
- *Segmentation*: whether the method also adapts segmentation networks.
"""


class Facts(NamedTuple):
    """A row of the table."""

    name: str
    paper: str
    prediction: str
    passes: str
    source: str
    trainable: str
    added: str
    pixels: str
    provenance: str


def methods_markdown() -> str:
    """The whole of docs/methods.md, with sizes on a ViT-B/16."""
    lines = [INTRODUCTION, f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for name, cls in METHODS.items():
        facts = method_facts(name, cls, _build(cls))
        facts = facts._replace(source=f"**{facts.source}**" if cls.source_need is SourceNeed.LABELED else facts.source)
        lines.append(f"| `{facts.name}` | {' | '.join(facts[1:])} |")
    lines += ["", "Configurations: " + ", ".join(f"`{name}` (of `{of}`)" for name, of in variants()) + ".", ""]
    for name, cls in METHODS.items():
        lines += [f"## {name}", "", *_prose(cls), ""]
    return "\n".join(lines).replace("``", "`").rstrip() + "\n"


def method_facts(name: str, cls: type[TTAMethod], built: TTAMethod | None = None) -> Facts:
    """What a method's class says about it.

    Args:
        name: Name of the method.
        cls: Its class.
        built: The method on a configured network, for the sizes; without it they stay empty.
    """
    sections = _sections(cls)
    cost = re.split(r"(?<=\.)\s", " ".join(sections.get("Cost", "").split()))[0].rstrip(".")
    sizes = (f"{built.trainable_parameters():,}", f"{built.extra_parameters():,}") if built else ("", "")
    timing, pixels = cls.prediction_timing.value.replace("_", " "), "yes" if cls.segments else ""
    return Facts(name, cls.paper, timing, cost, cls.source_need.value, *sizes, pixels, cls.provenance)


def _build(cls: type[TTAMethod]) -> TTAMethod:
    try:
        return _configured(cls, ViTBackbone(_shapes_of("vit_base_patch16_224"), (0.5,) * 3, (0.5,) * 3))
    except ValueError:  # the method needs batch norm
        return _configured(cls, TimmBackbone(_shapes_of("resnet50"), (0.5,) * 3, (0.5,) * 3))


def _shapes_of(name: str) -> nn.Module:
    """A network whose parameters have shapes and no values: sizes are all that is counted here."""
    with torch.device("meta"):
        return timm.create_model(name)


def _configured(cls: type[TTAMethod], backbone: Backbone) -> TTAMethod:
    method = cls(backbone)
    with torch.no_grad():
        method.configure_model()
    return method


def variants() -> Iterator[tuple[str, str]]:
    """Named configurations, each with the method that it configures."""
    register_all()
    classes = {cls: name for name, cls in METHODS.items()}
    for name in options("method"):
        if name not in METHODS:
            target = get_target(compose_run([f"method={name}"]).config.method)
            if target in classes:
                yield name, classes[target]


def _sections(cls: type) -> dict[str, str]:
    """Sections of a Google-style docstring by title; the part before them under ""."""
    parts = re.split(r"^([A-Z]\w+):$", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _prose(cls: type) -> list[str]:
    sections = _sections(cls)
    lines = [sections[""].strip()]
    for title in ("Cost", "Source", "Departures"):
        if title in sections:
            lines += ["", f"*{title}.* {' '.join(sections[title].split())}"]
    return lines
