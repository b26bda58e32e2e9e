"""The loop over runs: what is rejected in advance, what is announced, and what becomes a failed row."""

from __future__ import annotations

import io
import threading
import time

import pytest
import timm
from rich.console import Console
from safetensors.torch import save_file

from tta_bench.config.compose import compose_run
from tta_bench.experiments import jobs as jobs_module
from tta_bench.experiments import opened as opened_module
from tta_bench.experiments.jobs import run_jobs
from tta_bench.experiments.resume import locked
from tta_bench.experiments.run import Run
from tta_bench.report import comparison_tables

SMALL = ("dataset.num_images=8", "dataset.domains=[fog]", "setting.batch_size=8", "logger=off", "trainer=cpu")


def run(tmp_path, *runs):
    """Results and what was said of runs with these words."""
    console = Console(file=io.StringIO(), width=500)
    jobs = [compose_run([*SMALL, *words, f"output={tmp_path}/runs", f"cache_dir={tmp_path}"]) for words in runs]
    return run_jobs(jobs, console), console.file.getvalue()


def test_a_method_that_this_model_cannot_carry_is_named_at_the_start_and_fails_alone(tmp_path):
    save_file(timm.create_model("resnet10t", num_classes=10).state_dict(), tmp_path / "cnn.safetensors")
    (tmp_path / "cnn.yaml").write_text("{architecture: resnet10t, kwargs: {num_classes: 10}}")
    cnn = ("model=local", f"model.checkpoint={tmp_path}/cnn.safetensors", f"model.config={tmp_path}/cnn.yaml")
    results, said = run(tmp_path, (*cnn, "method=source"), (*cnn, "method=foa"), (*cnn, "method=tent"))
    assert [result["status"] for result in results] == ["done", "failed", "done"]
    reason = "FOA searches prompts, so it needs a vision transformer"
    assert said.index(f"foa will fail: {reason}") < said.index("run 2 of 3")
    assert f"foa seed 0 failed: ValueError: {reason}" in said


def test_a_run_that_cannot_start_is_a_failed_row_beside_the_others(tmp_path):
    results, said = run(tmp_path, ("method=source",), ("method=source", "dataset.severity=9"), ("method=tent",))
    assert [result["status"] for result in results] == ["done", "failed", "done"]
    assert "dataset.severity" in results[1]["error"]
    assert f"source seed 0 failed: {results[1]['error']}" in said
    assert "folder" not in results[1]
    assert len(comparison_tables(results)) == 1
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 2


def test_if_not_even_the_first_can_start_nothing_runs(tmp_path):
    with pytest.raises(ValueError, match=r"dataset\.severity"):
        run(tmp_path, ("method=source", "dataset.severity=9"), ("method=tent",))
    assert not (tmp_path / "runs").exists()


def test_words_that_build_no_method_are_refused_before_the_first_run(tmp_path):
    with pytest.raises(ValueError, match="needs at least 2, got 1"):
        run(tmp_path, ("method=source",), ("method=vida", "method.num_views=1"))
    assert not (tmp_path / "runs").exists()


def test_runs_on_the_same_data_share_what_was_opened_once(tmp_path, monkeypatch):
    opened, build = [], opened_module.build

    def watched(node):
        opened.extend(["data"] if "num_images" in node else [])
        return build(node)

    monkeypatch.setattr(opened_module, "build", watched)
    results, _ = run(tmp_path, ("method=source",), ("method=tent",), ("method=source", "dataset.severity=3"))
    assert [result["status"] for result in results] == ["done"] * 3
    assert len(opened) == 2


def test_runs_that_share_a_source_model_count_their_own_passes(tmp_path):
    words = ("method=dpcore", "method.num_source=16", "method.steps_new=2")
    results, _ = run(tmp_path, (*words, "seed=0"), (*words, "seed=1"))
    assert [result["source_forward_samples"] for result in results] == [16, 16]


def test_a_run_that_another_process_holds_comes_last(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "POLL", 0.1)
    words = [*SMALL, "method=tent", f"output={tmp_path}/runs", f"cache_dir={tmp_path}"]
    folder = Run.folder_of(compose_run(words))
    folder.mkdir(parents=True)
    held = locked(folder)
    held.__enter__()

    def let_go():
        while not list(tmp_path.glob("runs/*/*/source/*/result.json")):  # until the other run is done
            time.sleep(0.05)
        held.__exit__(None, None, None)

    threading.Thread(target=let_go).start()
    results, said = run(tmp_path, ("method=tent",), ("method=source",))
    assert [result["method"] for result in results] == ["tent", "source"]
    assert [result["status"] for result in results] == ["done", "done"]
    assert said.count("tent seed 0: another process is running it; it comes at the end") == 1
    assert results[0]["started"] >= results[1]["started"]
