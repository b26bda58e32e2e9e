"""Tables of the available methods, settings, data sets and models, from a file that is read in a moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from tta_bench.config import FOLDER_VARIABLE

METHODS = ("name", "paper", "prediction", "source data", "segmentation")
VARIANTS = ("name", "configuration of", "description")
OTHERS = ("name", "description")


def listing(group: str) -> RenderableType:
    """The options of a configuration group, each with a one-sentence description.

    Args:
        group: ``method``, ``setting``, ``dataset`` or ``model``.
    """
    if group != "method":
        return _table(OTHERS, _rows(group))
    remark = "Costs, sizes and origins of the default values: tta-bench list methods --markdown"
    return Group(_table(METHODS, _rows("method")), _table(VARIANTS, _rows("variant")), remark)


def _rows(group: str) -> list[list[str]]:
    if os.environ.get(FOLDER_VARIABLE):  # a folder of the user's can hold options of its own
        from tta_bench.cli.options import described

        return described(group)
    known = Path(__file__).with_name("options.json").read_text(encoding="utf-8")
    return json.loads(known)[group]


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    return table
