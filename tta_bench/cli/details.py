"""All about one option of a configuration group, from its code and its configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra_zen import get_target

from tta_bench.cli.known import known_options
from tta_bench.config.compose import compose_run, compose_stream, plain
from tta_bench.config.validate import MISSING
from tta_bench.config.words import word_for
from tta_bench.streams import KINDS

_FOR_PYTHON = re.compile(r"^(Returns|Raises|Example|States):\n(?:(?: .*)?\n)*", flags=re.MULTILINE)
"""Sections of a docstring for those who write Python."""


def details(group: str, name: str) -> str:
    """What the code says of an option, and its keys with their values.

    Args:
        group: ``method``, ``setting``, ``dataset`` or ``model``.
        name: The name of the option.
    """
    compose = compose_stream if group in ("setting", "dataset") else compose_run
    config = compose([f"{group}={name}"]).config[group]
    target = KINDS[config.kind] if group == "setting" else get_target(config)
    prose = _FOR_PYTHON.sub("", f"{inspect.getdoc(target)}\n").strip().replace("``", "")
    prose = re.sub(r":\w+:`(\w+)`", r"\1", prose)
    if group == "method":
        head = _method_facts(name, target)
    else:
        head, prose = [dict(known_options(group))[name]], prose.partition("\n\n")[2]
    keys = [f"  {word}" for word in _keys(group, plain(config))]
    return "\n".join([f"{name}: {head[0]}", *head[1:], "", prose, "", "Keys and their values:", *keys, ""])


def _method_facts(name: str, target: Any) -> list[str]:
    from tta_bench.cli.method_table import method_facts

    facts = method_facts(name, target)
    said = {
        "prediction": facts.prediction,
        "source data": facts.source,
        "segmentation": facts.pixels or "no",
        "defaults": facts.provenance,
    }
    return [facts.paper, *(f"  {key}: {value}" for key, value in said.items())]


def _keys(group: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The keys as they are written on the command line."""
    for key, value in values.items():
        if key.startswith("_") or key == "kind":
            continue
        yield f"{group}.{key}=..." if value == MISSING else str(word_for(f"{group}.{key}", value))
