"""What ``tta-bench list`` reads from a file is what the classes say."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tta_bench.cli import app
from tta_bench.cli.options import FILE, described
from tta_bench.config import FOLDER_VARIABLE


@pytest.mark.parametrize("group", ["method", "variant", "setting", "dataset", "model"])
def test_the_file_is_up_to_date(group, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    known = json.loads(FILE.read_text(encoding="utf-8"))[group]
    assert known == described(group), "tta_bench/cli/options.json is out of date: run `make docs`"


def test_options_of_the_users_folder_are_listed(tmp_path):
    (tmp_path / "method").mkdir()
    words = "# Tent, slowly.\ndefaults:\n  - tent\n  - _self_\nlr: 1.0e-5\n"
    (tmp_path / "method" / "slow_tent.yaml").write_text(words, encoding="utf-8")
    done = CliRunner(env={"COLUMNS": "200", FOLDER_VARIABLE: str(tmp_path)}).invoke(app, ["list", "methods"])
    line = next(line for line in done.output.splitlines() if "slow_tent" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")] == ["slow_tent", "tent", "Tent, slowly."]
