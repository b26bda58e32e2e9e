"""What Weights & Biases would receive, read from the files of an offline bench of two methods."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile

import pytest
from typer.testing import CliRunner

from tests.helpers.wandb_files import Logged, OfflineRun
from tta_bench.cli.app import app
from tta_bench.experiments.run import PACKAGES
from tta_bench.loggers.wandb_names import config_of
from tta_bench.report.groups import group_runs
from tta_bench.report.measures import best_first
from tta_bench.report.runs import RunRecord
from tta_bench.results.run_folder import FILES, read_results

WORDS = [
    "methods=[source,dpcore]", "dpcore.num_source=64", "dpcore.steps_new=2", "dataset.num_images=20",
    "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=8", "trainer=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("wandb")
    before = os.environ.get("WANDB_MODE")
    places = [f"output={home}/runs", f"cache_dir={home}/cache"]
    words = ["bench", *WORDS, "logger=wandb", "logger.wandb.mode=offline", *places]
    done = CliRunner(env={"WANDB_RUN_ID": "abc123", "WANDB_NAME": "mine", "COLUMNS": "80"}).invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "anonymous" not in done.output
    (told,) = re.findall(r"W&B was offline\. To upload: wandb login, then wandb sync (.*)\n", done.output)
    command = ["bash", "-c", f"ls -d {told}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(listed) == sorted(str(path.parent) for path in home.rglob("*.wandb"))
    assert os.environ.get("WANDB_MODE") == before
    return home


@pytest.fixture(scope="module")
def logged(home):
    return {path.parent.name: Logged(path) for path in home.glob("runs/*/*/*/seed*")}


METHODS = ("source", "dpcore")


def test_every_method_has_a_run_of_its_own(logged):
    """Whatever a variable says, which would give one id to both."""
    assert len({"abc123", *(content.run.run_id for content in logged.values())}) == 3


@pytest.mark.parametrize("method", METHODS)
class TestARun:
    def test_has_a_name_and_stands_in_the_group_of_its_stream(self, logged, method):
        run, short = logged[method].run, logged[method].result["stream_sha256"][:12]
        assert (run.display_name, run.job_type) == (f"{method}-seed0", "run")
        assert run.run_group == f"shapes_c/cdc/{short}"
        assert set(run.tags) == {method, "cdc", "shapes_c"}

    def test_has_the_whole_configuration_and_all_versions(self, logged, method):
        config, result = logged[method].config, logged[method].result
        for key in ("method", "setting", "dataset", "seed", "stream_sha256", "weights_sha256", "data", "config"):
            assert config[key] == result[key]
        assert "status" not in config
        assert set(config["versions"]) == {*PACKAGES, "python"}

    def test_has_every_step_once_in_order(self, logged, method):
        steps = [row["stream/step"] for row in logged[method].steps]
        assert steps == [int(row["step"]) for row in logged[method].rows]
        assert steps == list(range(len(steps)))

    def test_has_the_numbers_of_the_rows(self, logged, method):
        for row, step in zip(logged[method].rows, logged[method].steps, strict=True):
            assert step["stream/error"] == pytest.approx(float(row["error"]))
            assert step["stream/running_error"] == pytest.approx(float(row["running_error"]))
            assert step["cost/forward_per_sample"] == int(row["forward_samples"]) / int(row["samples"])
            assert step["cost/backward_per_sample"] == int(row["backward_samples"]) / int(row["samples"])
            assert step["cost/seconds"] == pytest.approx(float(row["seconds"]), abs=1e-6)
            if row["coreset_size"]:
                assert step["method/coreset_size"] == float(row["coreset_size"])

    def test_has_the_error_of_each_domain_so_far(self, logged, method):
        samples, wrong = {}, {}
        for row, step in zip(logged[method].rows, logged[method].steps, strict=True):
            name = row["domain"]
            samples[name] = samples.get(name, 0) + int(row["samples"])
            wrong[name] = wrong.get(name, 0) + int(row["wrong"])
            assert step[f"domain/{name}"] == pytest.approx(100 * wrong[name] / samples[name])
            assert [key for key in step if key.startswith("domain/")] == [f"domain/{name}"]

    def test_has_the_stream_as_the_axis_of_every_chart(self, logged, method):
        metrics = logged[method].of_kind("metric")
        axes = {m.glob_name or m.name: m.step_metric for m in metrics}
        assert axes["*"] == "stream/step"
        assert "trainer/global_step" not in axes

    def test_has_the_result_as_its_summary(self, logged, method):
        summary, result = logged[method].summary, logged[method].result
        for key in ("status", "mean_error", "sample_error", "forward_per_sample", "coreset_size", "seconds"):
            assert summary[key] == result[key]

    def test_takes_over_the_files_of_the_run_folder(self, logged, method):
        content = logged[method]
        assert "run_folder.zip" in content.to_upload
        with zipfile.ZipFile(content.files / "run_folder.zip") as archive:
            assert sorted(archive.namelist()) == sorted(FILES)
            for name in {*FILES} - {"result.json"}:
                assert archive.read(name) == (content.folder / name).read_bytes()
            packed = json.loads(archive.read("result.json"))
        later = ("source_mean_error", "checksums")  # what Source's error is, is known later
        assert {k: v for k, v in packed.items() if k not in later} == {
            k: v for k, v in content.result.items() if k not in later
        }

    def test_has_a_table_of_the_domains_errors(self, logged, method):
        (row,) = [row for row in logged[method].history if "domain_error._type" in row or "domain_error" in row]
        content, result = logged[method].table("domain_error"), logged[method].result
        assert content["columns"] == ["domain", "error", "samples"]
        assert {name: error for name, error, _ in content["data"]} == result["domain_error"]
        assert "stream/error" not in row

    def test_has_ended(self, logged, method):
        assert [record.exit_code for record in logged[method].of_kind("exit")] == [0]


def group_of(home):
    (group,) = group_runs(map(RunRecord, read_results([home / "runs"])))
    return group


def compared(home):
    return OfflineRun(home / "runs/shapes_c/cdc", "compare-*")


def test_runs_that_may_be_compared_agree_in_their_protocol_and_those_that_may_be_averaged_in_their_entry(logged):
    configs = [content.config for content in logged.values()]
    assert len({config["protocol"] for config in configs}) == 1
    assert len({config["entry"] for config in configs}) == 2
    source = logged["source"].result
    seed = config_of({**source, "seed": 7, "stream_sha256": "7" * 64, "config": {**source["config"], "seed": 7}})
    assert [seed[key] for key in ("protocol", "entry")] == [
        logged["source"].config[key] for key in ("protocol", "entry")
    ]
    slower = {**source, "config": {**source["config"], "reset": "domain"}}
    assert config_of(slower)["entry"] != seed["entry"]
    assert config_of({**source, "weights_sha256": "other"})["protocol"] != seed["protocol"]


class TestTheComparison:
    def test_stands_in_the_group_of_its_runs(self, home, logged):
        run = compared(home)
        assert (run.run.display_name, run.run.job_type) == ("compare shapes_c cdc", "compare")
        assert run.run.run_group == logged["source"].run.run_group
        assert run.run.run_id == f"compare-{logged['source'].config['protocol']}"
        assert "protocol" not in run.config
        assert [record.exit_code for record in run.of_kind("exit")] == [0]

    def test_has_the_numbers_of_every_method(self, home, logged):
        table = compared(home).table("compare/methods")
        rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
        results = {method: content.result for method, content in logged.items()}
        assert set(rows) == set(results)
        for method, row in rows.items():
            result = results[method]
            assert row["Mean error (%)"] == pytest.approx(result["mean_error"])
            assert row["gain over source"] == pytest.approx(results["source"]["mean_error"] - result["mean_error"])
            assert row["gaussian_noise (%)"] == pytest.approx(result["domain_error"]["gaussian_noise"])
            assert row["Forward passes (per sample)"] == pytest.approx(result["forward_per_sample"])
            assert row["Coreset size"] == result["coreset_size"]
            assert (row["streams"], row["std over streams"]) == (1, None)

    def test_has_the_errors_by_domain(self, home, logged):
        table = compared(home).table("compare/domains")
        assert table["columns"] == ["domain", "method", "error (%)", "std over streams", "streams"]
        found = {(domain, method): error for domain, method, error, *_ in table["data"]}
        assert found == {
            (domain, method): pytest.approx(error)
            for method, content in logged.items()
            for domain, error in content.result["domain_error"].items()
        }

    def test_draws_bars_and_running_errors(self, home, logged):
        run = compared(home)
        bars = dict(run.table("compare/mean_error_table")["data"])
        assert bars == {method: pytest.approx(content.result["mean_error"]) for method, content in logged.items()}
        curves = run.table("compare/running_error_seed_0_table")
        assert curves["columns"] == ["step", "lineKey", "lineVal"]
        for method, content in logged.items():
            drawn = [(step, value) for step, name, value in curves["data"] if name == method]
            assert drawn == [(i + 1, pytest.approx(float(row["running_error"]))) for i, row in enumerate(content.rows)]

    def test_has_the_page_of_the_report_without_links_to_this_machine(self, home):
        (page,) = compared(home).files.glob("media/html/compare/page_*.html")
        text = page.read_text()
        assert 'id="g1"' in text
        assert "batches.csv" not in text
        assert str(home) not in text

    def test_says_who_is_best(self, home):
        summary = compared(home).summary
        best = best_first(group_of(home))[0]
        assert (summary["best"], summary["methods"], summary["runs"]) == (best.label, 2, 2)


def test_a_bench_that_is_repeated_or_goes_on_keeps_its_comparison(home):
    before = compared(home)
    words = [
        "methods=[tent]",
        *WORDS[3:],
        f"output={home}/runs",
        f"cache_dir={home}/cache",
        "logger.wandb.mode=offline",
    ]
    assert CliRunner().invoke(app, ["bench", *words]).exit_code == 0
    after = compared(home)  # fails if there are two
    assert after.run.run_id == before.run.run_id
    assert after.summary["methods"] == 3


def test_a_comparison_that_fails_does_not_fail_the_bench(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("the server is on fire")

    monkeypatch.setattr("tta_bench.loggers.wandb_compare.comparison", fail)
    words = ["methods=[source]", *WORDS[3:], f"output={tmp_path}/runs", "logger.wandb.mode=offline"]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *words])
    assert done.exit_code == 0
    assert "W&B did not get the comparison: the server is on fire\n" in done.output
    assert [record.exit_code for record in compared(tmp_path).of_kind("exit")] == [0]


def test_a_run_that_is_uploaded_later_is_the_run_that_is_logged_live(logged, tmp_path, monkeypatch):
    live = logged["dpcore"]
    folder = tmp_path / "dpcore"
    shutil.copytree(live.folder, folder, ignore=shutil.ignore_patterns("wandb"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = CliRunner().invoke(app, ["report", str(folder), "--to-wandb", "me/project"])
    assert done.exit_code == 0, done.output
    later = OfflineRun(folder, 16 * "?")
    for key in ("display_name", "run_group", "job_type", "tags"):
        assert getattr(later.run, key) == getattr(live.run, key)
    assert (later.run.entity, later.run.project) == ("me", "project")
    assert {k: v for k, v in later.config.items() if k != "_wandb"} == {
        k: v for k, v in live.config.items() if k != "_wandb"
    }
    theirs = [{k: v for k, v in row.items() if k[0] != "_" and "peak_memory" not in k} for row in live.steps]
    mine = [{k: v for k, v in row.items() if k[0] != "_"} for row in later.steps]
    for one, other in zip(mine, theirs, strict=True):
        assert one == {k: pytest.approx(v, abs=1e-6, nan_ok=True) for k, v in other.items()}
    outcome = [key for key in live.summary if key.split("/")[0] not in ("_wandb", "cost", "domain_error")]
    for key in outcome:
        if not key.startswith(("_", "domain_error")):
            assert later.summary[key] == pytest.approx(live.summary[key], nan_ok=True)
    assert "run_folder.zip" in later.to_upload
    assert {m.glob_name or m.name: m.step_metric for m in later.of_kind("metric")} == {
        m.glob_name or m.name: m.step_metric for m in live.of_kind("metric")
    }


def test_a_failed_run_ends_as_failed(tmp_path):
    words = ["method=dpcore", "method.num_source=5000", *WORDS[3:], "logger.wandb.mode=offline"]
    done = CliRunner().invoke(app, ["run", *words, f"output={tmp_path}/runs", f"cache_dir={tmp_path}/cache"])
    assert done.exit_code == 1
    (folder,) = tmp_path.glob("runs/*/*/*/seed*")
    failed = Logged(folder)
    assert [record.exit_code for record in failed.of_kind("exit")] == [1]
    assert failed.summary["status"] == "failed"


def test_without_a_key_a_run_is_offline_and_needs_no_network(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    words = ["method=source", *WORDS[3:], f"output={tmp_path}/runs", "logger=wandb"]
    assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
    assert len(list(tmp_path.glob("runs/*/*/*/seed*/wandb/offline-run-*/*.wandb"))) == 1


def test_switched_off_it_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["method=source", *WORDS[3:], f"output={tmp_path}/runs", "logger=off"]
    assert CliRunner().invoke(app, ["run", *words]).exit_code == 0
    assert [path for path in tmp_path.rglob("*") if "wandb" in path.name] == []
    (folder,) = tmp_path.glob("runs/*/*/*/seed*")
    names = [".trace.json", "batches.csv", "config.yaml", "result.json", "stream.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
