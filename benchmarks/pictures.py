"""Regenerates the pictures of README.md: the table of the main command, and the timeline of each setting.

Run with ``make pictures``; takes a few minutes. The table is the output of a bench that is run here.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console

from tta_bench.cli.show import show_stream
from tta_bench.experiments.bench import bench
from tta_bench.report import comparison_tables

HOME = Path(__file__).parents[1] / "docs" / "images"
SETTINGS = ("csc", "cdc", "cdc_2d", "ptta", "gradual", "blurred", "mixed")
WIDTH = 100


def main() -> None:
    quiet = Console(file=io.StringIO())
    for setting in SETTINGS:
        show_stream([f"setting={setting}"], HOME / f"{setting}.png", quiet)
    with tempfile.TemporaryDirectory() as output:
        results = bench(["setting=cdc", "logger=off", f"output={output}"], Console())
    picture = Console(record=True, width=WIDTH, file=io.StringIO())
    for table in comparison_tables([{k: v for k, v in result.items() if k != "folder"} for result in results]):
        picture.print(table)
    picture.save_svg(str(HOME / "bench.svg"), title="make bench SETTING=cdc")


if __name__ == "__main__":
    main()
