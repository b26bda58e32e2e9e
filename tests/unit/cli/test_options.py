"""What ``tta-bench list`` reads from a file is what the classes say."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tta_bench.cli import app
from tta_bench.cli.known import FILE, GROUPS, known_options
from tta_bench.cli.options import described
from tta_bench.config import FOLDER_VARIABLE


@pytest.mark.parametrize("group", GROUPS)
def test_the_file_is_up_to_date(group, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert sorted(json.loads(FILE.read_text(encoding="utf-8"))) == sorted(GROUPS)
    assert known_options(group) == described(group), "tta_bench/cli/options.json is out of date: run `make docs`"


def test_options_of_the_users_folder_are_listed(tmp_path):
    (tmp_path / "method").mkdir()
    words = "# Tent, slowly.\ndefaults:\n  - tent\n  - _self_\nlr: 1.0e-5\n"
    (tmp_path / "method" / "slow_tent.yaml").write_text(words, encoding="utf-8")
    done = CliRunner(env={"COLUMNS": "200", FOLDER_VARIABLE: str(tmp_path)}).invoke(app, ["list", "methods"])
    line = next(line for line in done.output.splitlines() if "slow_tent" in line)
    assert line.split() == ["slow_tent", "tent:", "Tent,", "slowly."]


def listed(*words):
    done = CliRunner().invoke(app, ["list", *words])
    assert done.exit_code == 0, done.output
    return done.output


class TestOne:
    def test_method_tells_paper_arguments_and_values(self):
        told = listed("methods", "tent")
        assert told.startswith("tent: Wang et al., ICLR 2021\n  prediction: last forward\n")
        assert "\n    momentum: Momentum of SGD.\n" in told
        assert "\nCost:\n" in told
        assert "\n  method.momentum=0.9\n" in told

    def test_configuration_of_a_method_tells_its_own_values(self):
        assert "\n  method.prompt_space=norms\n" in listed("methods", "dpcore_exp3")
        assert "\n  method.prompt_space=tokens\n" in listed("methods", "dpcore")

    def test_data_set_needs_what_only_the_user_knows(self):
        told = listed("datasets", "imagenet_c")
        assert "\n  dataset.root=...\n" in told
        assert "Raises:" not in told

    def test_setting_is_described_without_examples_in_python(self):
        told = listed("settings", "repeating")
        assert told.startswith("repeating: csc with rounds=10.\n\nArgs:\n")
        assert ">>>" not in told
        assert "\n  setting.rounds=10\n" in told
        assert "kind" not in told.partition("Keys and their values:")[2]

    def test_wrong_name_is_one_sentence(self):
        done = CliRunner().invoke(app, ["list", "models", "resnett"])
        assert done.exit_code == 2
        assert "error: there is no model 'resnett'; choose from: local, " in " ".join(done.output.split())
