"""Transfer of run folders to Weights & Biases and back, with offline files and a stand-in for the API."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from tests.helpers.report_runs import DOMAINS, result, write_run
from tests.helpers.wandb_files import OfflineRun, whole_records
from tta_bench.cli.app import app
from tta_bench.loggers import wandb_transfer
from tta_bench.loggers.wandb_run import load_wandb
from tta_bench.loggers.wandb_transfer import read_place
from tta_bench.report import report_text
from tta_bench.results.run_folder import read_results

ERRORS = {("source", 0): (3, 2), ("source", 1): (2, 2), ("tent", 0): (2, 1), ("tent", 1): (2, 0)}  # wrong of 4, twice
MEANS = {run: 100 * sum(wrong) / 8 for run, wrong in ERRORS.items()}


@pytest.fixture
def runs(tmp_path):
    for (method, seed), wrong in ERRORS.items():
        batches = [{domain: (4, k)} for domain, k in zip(DOMAINS, wrong, strict=False)]
        content = result(method, seed, stream_sha256=64 * str(seed))
        write_run(tmp_path / "runs" / method / f"seed{seed}", content, batches)
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("TTA_BENCH_CACHE", str(tmp_path / "cache"))


def report(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", *map(str, words)])


def message(done):
    """The one sentence of a mistake."""
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    return line


class TestOffline:
    @pytest.fixture
    def given(self, runs, monkeypatch):
        monkeypatch.setenv("WANDB_MODE", "offline")
        done = report(runs, "--to-wandb", "me/project")
        assert done.exit_code == 0, done.output
        assert done.stderr.startswith("4 runs uploaded to me/project, 0 already there; to upload them: find ")
        return runs

    def test_a_run_has_its_rows_result_and_files(self, given):
        run = OfflineRun(given / "tent/seed1")
        assert (run.run.entity, run.run.project, run.run.display_name) == ("me", "project", "tent-seed1")
        (content,) = read_results([given / "tent/seed1"])
        assert run.run.run_group == f"shapes_c/cdc/{content['stream_sha256'][:12]}"
        assert [row["stream/running_error"] for row in run.steps] == [50.0, 25.0]
        assert [row["stream/step"] for row in run.steps] == [0, 1]
        assert run.summary["mean_error"] == MEANS["tent", 1] == 25.0
        assert "run_folder.zip" in run.to_upload

    def test_seeds_become_one_row_with_their_deviation_and_a_gain_with_its_interval(self, given):
        table = OfflineRun(given, "compare-*").table("compare/methods")
        rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
        # source 62.5 and 50, tent 37.5 and 25: the same gain twice, so an interval without width
        assert rows["tent"]["Mean error (%)"] == pytest.approx(31.25)
        assert rows["tent"]["std over streams"] == pytest.approx(12.5 / 2**0.5)
        assert rows["tent"]["streams"] == 2
        gain = [rows["tent"][f"gain over source{end}"] for end in ("", ", low", ", high")]
        assert gain == pytest.approx([25.0, 25.0, 25.0])

    def test_the_comparison_of_several_streams_has_a_chart_for_each(self, given):
        run = OfflineRun(given, "compare-*")
        assert run.run.run_group == f"shapes_c/cdc/{run.config['compares']}"
        assert run.config["streams"] == ["seed 0", "seed 1"]
        for seed in (0, 1):
            curves = run.table(f"compare/running_error_seed_{seed}_table")["data"]
            last = {name: value for _, name, value in curves}
            assert last == {method: pytest.approx(MEANS[method, seed]) for method in ("source", "tent")}

    def test_a_run_keeps_its_id(self, given):
        before = OfflineRun(given / "tent/seed0").run.run_id
        assert report(given, "--to-wandb", "me/project").exit_code == 0
        found = list(given.glob("tent/seed0/wandb/offline-run-*/*.wandb"))
        assert len(found) == 2
        assert {whole_records(path)[1].run.run_id for path in found} == {before}
        OfflineRun(given, "compare-*")  # fails if there are two

    def test_runs_that_differ_have_different_ids(self, given):
        assert len({OfflineRun(path).run.run_id for path in given.glob("*/seed*")}) == 4


def test_a_run_that_was_logged_live_keeps_its_id_there(runs, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = runs / "tent/seed0"
    for day, run_id in (("run-20260101", "first"), ("offline-run-20260102", "second"), ("run-20260103", "compare-x")):
        made = folder / "wandb" / f"{day}_000000-{run_id}"
        made.mkdir(parents=True)
        made.joinpath(f"run-{run_id}.wandb").touch()
    assert report(folder, "--to-wandb", "me/project").exit_code == 0
    made.with_name("offline-run-20260102_000000-second").joinpath("run-second.wandb").unlink()
    assert OfflineRun(folder, "second").run.run_id == "second"


def test_unfinished_runs_are_left_out_and_failed_ones_are_not(runs, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name, status in (("tent/seed0", "running"), ("tent/seed1", "failed")):
        path = runs / name / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))
    done = report(runs, "--to-wandb", "me/project")
    assert done.exit_code == 0
    assert "1 of 4 runs are unfinished and left out" in done.stderr
    assert not (runs / "tent/seed0/wandb").exists()
    assert [record.exit_code for record in OfflineRun(runs / "tent/seed1").of_kind("exit")] == [1]


def test_only_unfinished_runs_are_a_mistake(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_run(tmp_path / "one", result(status="running"), [{"fog": (4, 1)}])
    told = message(report(tmp_path, "--to-wandb", "me/project"))
    assert told == f"error: no run in {tmp_path} is finished: repeat its command to resume it"


@pytest.mark.parametrize("direction", ["--to-wandb", "--from-wandb"])
def test_without_a_key_nothing_is_tried(runs, direction):
    assert message(report(runs, direction, "me/project")) == (
        "error: W&B has no API key here: run wandb login, or set WANDB_API_KEY"
    )


def test_a_mode_that_uploads_nothing_is_refused(runs, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert message(report(runs, "--to-wandb", "me/project")).startswith("error: WANDB_MODE=disabled uploads nothing")


@pytest.mark.parametrize("place", ["", "me", "me/", "/project", "me/project/run"])
def test_a_place_is_an_entity_and_a_project(place):
    with pytest.raises(ValueError, match=r"is not a W&B project: it must have the form entity/project$"):
        read_place(place)


class FakeFile:
    """A file of a run on the server."""

    def __init__(self, name, content):
        self.name, self.content = name, content

    def download(self, root, replace):
        assert replace
        path = Path(root) / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content)
        return io.StringIO()


class FakeRun:
    """A run on the server, with the parts of ``wandb.apis.public.Run`` that are asked for."""

    def __init__(self, run_id, files, state="finished", summary=None):
        self.id, self._files, self.state, self.summary = run_id, files, state, summary or {}

    def files(self, names):
        return [FakeFile(name, content) for name, content in self._files.items() if name in names]


class FakeApi:
    """The service: projects with runs."""

    def __init__(self, projects):
        self.projects = projects

    def runs(self, path, filters):
        assert filters == {"jobType": "run"}
        if path not in self.projects:
            raise ValueError(f"Could not find project {path}")
        return iter(self.projects[path])

    def run(self, path):
        place, _, run_id = path.rpartition("/")
        for run in self.projects[place]:
            if run.id == run_id:
                return run
        raise load_wandb().errors.CommError(f"Could not find run {path}")


@pytest.fixture
def service(monkeypatch):
    """Projects that the service holds, to be filled."""
    projects = {}
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setattr(load_wandb(), "Api", lambda: FakeApi(projects))
    return projects


def packed(folder):
    """The packed run folder that an offline run is to upload."""
    (path,) = folder.glob("wandb/offline-run-*/files/run_folder.zip")
    return {"run_folder.zip": path.read_bytes()}


def test_a_report_from_w_and_b_is_the_report_from_the_folders(runs, service, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert report(runs, "--to-wandb", "me/project").exit_code == 0
    service["me/project"] = [FakeRun(f"id{k}", packed(path)) for k, path in enumerate(sorted(runs.glob("*/seed*")))]
    service["me/project"].append(FakeRun("live", {}))
    local = {form: report_text(read_results([runs]), form) for form in ("terminal", "latex", "markdown")}
    shutil.rmtree(runs)
    for form, text in local.items():
        done = report("--from-wandb", "me/project", "--format", form, "--output", tmp_path / f"page.{form}")
        assert done.exit_code == 0, done.output
        assert (tmp_path / f"page.{form}").read_text() == text
        assert done.stderr.startswith("1 of 5 runs of me/project are unfinished or not of tta_bench")
    done = report("--from-wandb", "me/project", "--output", tmp_path / "page.html")
    assert "4 runs in" in done.stdout
    assert (tmp_path / "page.html").read_text().count("cache/wandb/me/project/id0/batches.csv") == 1


def test_only_the_files_of_a_run_folder_are_unpacked(service, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("result.json", json.dumps(result()))
        archive.writestr("../../outside.txt", "x")
        archive.writestr("more.txt", "x")
    service["me/project"] = [FakeRun("one", {"run_folder.zip": packed.getvalue()})]
    assert report("--from-wandb", "me/project").exit_code == 0
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"run_folder.zip", "result.json", ".trace.json"}  # the last one is written by the report


@pytest.mark.parametrize(
    ("runs_there", "sentence"),
    [
        (None, "error: cannot download the runs of me/project from W&B: Could not find project me/project"),
        ([], "error: none of the 0 runs of me/project is a finished run of tta_bench"),
        ([FakeRun("a", {})], "error: none of the 1 runs of me/project is a finished run of tta_bench"),
        (
            [FakeRun("a", {"run_folder.zip": b"x"})],
            "error: cannot download the runs of me/project from W&B: File is not a zip file",
        ),
    ],
)
def test_what_w_and_b_does_not_have_is_said_in_a_sentence(service, runs_there, sentence):
    if runs_there is not None:
        service["me/project"] = runs_there
    assert message(report("--from-wandb", "me/project")) == sentence


def test_runs_that_have_ended_there_are_left_as_they_are(runs, service, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert report(runs, "--to-wandb", "me/project").exit_code == 0
    ids = {path.name: OfflineRun(path).run.run_id for path in (runs / "tent").glob("seed*")}
    service["me/project"] = [
        FakeRun(ids["seed0"], {}, summary={"status": "done"}),
        FakeRun(ids["seed1"], {}, state="crashed", summary={"status": "done"}),
    ]
    monkeypatch.delenv("WANDB_MODE")
    started, run = [], MagicMock(dir=str(tmp_path))
    monkeypatch.setattr(wandb_transfer, "start", lambda result, folder, **place: started.append((folder, place)) or run)
    monkeypatch.setattr(wandb_transfer, "log_comparisons", lambda *_, **where: started.append(where))
    done = report(runs / "tent", "--to-wandb", "me/project")
    assert done.stderr == "1 run uploaded to me/project, 1 already there\n"
    ((folder, place), where) = started
    assert folder.name == "seed1"
    assert place == {"id": ids["seed1"], "entity": "me", "project": "project", "mode": "online"}
    assert where["mode"] == "online"


def test_runs_that_classify_pixels_are_compared_by_mean_iou(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for method, value in (("source", 30.0), ("tent", 40.0)):
        folder = write_run(tmp_path / method, result(method), [{"fog": (4, 1)}])
        path = folder / "result.json"
        iou = {"mean_iou": value, "pooled_iou": value, "domain_iou": {"fog": value}}
        path.write_text(json.dumps({**json.loads(path.read_text()), **iou}))
    assert report(tmp_path, "--to-wandb", "me/project").exit_code == 0
    run, compared = OfflineRun(tmp_path / "tent"), OfflineRun(tmp_path, "compare-*")
    assert run.table("domain_iou")["data"] == [["fog", 40.0, 4]]
    assert run.summary["mean_iou"] == 40.0
    table = compared.table("compare/methods")
    best = dict(zip(table["columns"], table["data"][0], strict=True))
    assert (best["method"], best["Mean IoU (%)"], best["gain over source"]) == ("tent", 40.0, 10.0)
    assert compared.table("compare/mean_iou_table")["data"] == [["tent", 40.0], ["source", 30.0]]
    assert compared.summary["best_mean_iou"] == 40.0
