"""Tables of what can be chosen."""

from __future__ import annotations

import inspect

from hydra_zen import get_target
from rich.table import Table

from tta_bench.config.compose import compose_run, compose_stream, options
from tta_bench.config.registry import register_all, register_light
from tta_bench.streams import KINDS


def listing(group: str) -> Table:
    """The options of a configuration group with a sentence each.

    Args:
        group: ``method``, ``setting``, ``dataset`` or ``model``.
    """
    if group == "method":
        from tta_bench.cli.method_table import method_table

        return method_table()
    register_light() if group in ("setting", "dataset") else register_all()
    table = Table("name", "what it is")
    for name in options(group):
        table.add_row(name, _sentence(group, name))
    return table


def _sentence(group: str, name: str) -> str:
    if group == "setting":
        kind = compose_stream([f"setting={name}"]).config.setting.kind
        return _first_sentence(KINDS[kind]) if name == kind else f"a configuration of {kind}"
    if group == "dataset":
        return _first_sentence(get_target(compose_stream([f"dataset={name}"]).config.dataset))
    return _first_sentence(get_target(compose_run([f"model={name}"]).config.model))


def _first_sentence(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
