"""Estimated costs are upper bounds of the counted ones; shards take about equally long and miss no run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tta_bench.config.launch import Shard
from tta_bench.experiments.bench import bench, make_plan
from tta_bench.experiments.costs import PASSES, cost, jobs_table, long_first, passes, share
from tta_bench.experiments.tune import make_tuning, tune
from tta_bench.methods import METHODS

SMALL = ("dataset.num_images=8", "dataset.domains=[fog]", "setting.batch_size=8", "logger=off", "trainer=cpu")


def quiet():
    return Console(file=io.StringIO(), width=300)


def test_every_method_has_an_estimate():
    assert PASSES.keys() == METHODS.keys()
    assert all(passes(job) > (0, 0) for job in make_plan([f"methods=[{','.join(METHODS)}]"]).compose())


def test_no_run_counts_more_passes_than_estimated(tmp_path):
    names = ["source", "tent", "eata", "sar", "roid", "dpcore", "rotta", "cotta", "deyo"]
    own = ["dpcore.steps_new=3", "dpcore.num_source=32", "eata.num_source=16", "rotta.update_every=8",
           "rotta.memory_size=8", "cotta.num_views=2", "tent.steps=2"]  # fmt: skip
    words = [*SMALL, f"methods=[{','.join(names)}]", *own, f"output={tmp_path}", f"cache_dir={tmp_path}"]
    jobs = make_plan(words).compose()
    results = bench(words, quiet())
    assert [result["status"] for result in results] == ["done"] * len(names)
    for job, result in zip(jobs, results, strict=True):
        forward, backward = passes(job)
        assert 0 < result["forward_per_sample"] <= forward, job.choices["method"]
        assert result["backward_per_sample"] <= backward, job.choices["method"]


def test_a_class_of_the_users_costs_what_its_base_does(tmp_path, monkeypatch):
    (tmp_path / "costly.py").write_text("from tta_bench.methods import Tent\nclass Costly(Tent): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    (job,) = make_plan(["methods=[costly.Costly]", "Costly.steps=4"]).compose()
    assert passes(job) == (4, 4)


def test_long_runs_come_first_whatever_the_order_of_the_words():
    one = long_first(make_plan(["methods=[source,dpcore,tent]", "seeds=[0,1]"]).compose())
    assert [job.choices["method"] for job in one] == ["dpcore", "dpcore", "tent", "tent", "source", "source"]
    assert cost(one[0]) > cost(one[2]) > cost(one[4])


def test_shards_split_the_same_list_evenly():
    jobs = make_plan(["methods=[source,tent,cotta,dpcore]", "seeds=[0,1,2]"]).compose()
    parts = [share(jobs, Shard(k, 3)) for k in (1, 2, 3)]
    assert sorted(str(job.words) for part in parts for job in part) == sorted(str(job.words) for job in jobs)
    assert len({sum(map(cost, part)) for part in parts}) == 1
    assert share(jobs, None) == jobs


def test_a_shard_of_a_bench_runs_its_own_runs_only(tmp_path):
    words = [*SMALL, "methods=[source,tent]", f"output={tmp_path}/runs", f"cache_dir={tmp_path}"]
    assert [result["method"] for result in bench([*words, "shard=1/2"], quiet())] == ["tent"]
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 1
    console = quiet()
    assert bench([*words, "shard=3/3"], console) == []
    assert "shard 3/3 holds no run" in console.file.getvalue()


def test_a_shard_of_a_grid_shows_no_table(tmp_path):
    words = ["method=tent", "dataset.num_images=8", "setting.batch_size=8", "logger=off", "trainer=cpu", "shard=2/2",
             f"output={tmp_path}/runs", f"cache_dir={tmp_path}"]  # fmt: skip
    console = quiet()
    assert tune(make_tuning(words, ["lr=[0.1,0.2]"]), console) is None
    assert "shard 2/2: 1 of 1 runs are done; when all shards are, the same command" in console.file.getvalue()


def test_the_list_shows_what_differs_between_runs():
    console = quiet()
    console.print(jobs_table(make_plan(["methods=[source,tent]", "setting=csc"]).compose()))
    shown = console.file.getvalue()
    assert "setting=csc" not in shown
    assert shown.index("method=tent") < shown.index("method=source")
    assert "75.0 %" in shown


@pytest.mark.parametrize("word", ["shard=1/2", "launcher=local"])
def test_how_runs_are_started_leaves_no_trace_in_their_configuration(word):
    plain, started = make_plan(["methods=[source]"]), make_plan(["methods=[source]", word])
    assert [job.config for job in plain.compose()] == [job.config for job in started.compose()]
