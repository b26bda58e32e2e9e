"""Environment variables of W&B: the mode is respected, the name of a single run is not."""

from __future__ import annotations

import io
import os
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.helpers.report_runs import result, write_run
from tta_bench.loggers import wandb_run
from tta_bench.loggers.wandb_compare import compare_bench
from tta_bench.loggers.wandb_run import OF_ONE_RUN, open_wandb
from tta_bench.results.run_folder import read_results


def test_disabled_is_off_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    console = Console(file=io.StringIO())
    folder = write_run(tmp_path / "a/b/run", result(), [{"fog": (4, 1)}])
    before = sorted(tmp_path.rglob("*"))
    assert open_wandb(result(), folder, console) == []
    settings = SimpleNamespace(mode="auto", project="p", entity=None)
    compare_bench(read_results([folder]), settings, console)
    assert console.file.getvalue() == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_each_run_has_its_own_id_name_and_group_whatever_the_environment_names(tmp_path, monkeypatch):
    for key in OF_ONE_RUN:
        monkeypatch.setenv(key, "abc123")
    monkeypatch.setenv("WANDB_PROJECT", "kept")
    asked = []

    def init(**arguments):
        assert not set(OF_ONE_RUN) & set(os.environ)
        assert os.environ["WANDB_PROJECT"] == "kept"
        asked.append(arguments)
        raise OSError("no network here")

    monkeypatch.setattr(wandb_run.load_wandb(), "init", init)
    for method in ("source", "tent"):
        assert open_wandb(result(method), tmp_path, Console(file=io.StringIO()), mode="offline") == []
    first, second = asked
    assert len({first["id"], second["id"], "abc123", None}) == 4
    assert [one["name"] for one in asked] == ["source-seed0", "tent-seed0"]
    assert all(os.environ[key] == "abc123" for key in OF_ONE_RUN)


def test_a_run_that_goes_on_keeps_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "abc123")
    monkeypatch.setattr(wandb_run.load_wandb(), "init", lambda **arguments: arguments)
    assert wandb_run.init(tmp_path, id="mine", resume="allow")["id"] == "mine"


@pytest.mark.parametrize("key", OF_ONE_RUN)
def test_the_names_are_those_that_wandb_reads(key):
    known = set(wandb_run.load_wandb().Settings.model_fields)
    name = key.removeprefix("WANDB_").lower()
    assert {name, f"run_{name}"} & known
