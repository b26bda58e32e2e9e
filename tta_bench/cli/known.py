"""The options of each configuration group with a sentence about each, from a file that is read in a moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tta_bench.config import FOLDER_VARIABLE

FILE = Path(__file__).with_name("options.json")
GROUPS = ("method", "setting", "dataset", "model")


def known_options(group: str) -> list[tuple[str, str]]:
    """Name and description of each option of one of ``GROUPS``."""
    if os.environ.get(FOLDER_VARIABLE):  # a folder of the user's can hold options of its own
        from tta_bench.cli.options import described

        return described(group)
    return [(name, about) for name, about in json.loads(FILE.read_text(encoding="utf-8"))[group]]
