"""What Weights & Biases would receive, read back from the files of an offline bench of two methods."""

from __future__ import annotations

import csv
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tta_bench.cli import app
from tta_bench.engine.run import PACKAGES

pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
BLOCK = 32768  # of LevelDB's log format, which a .wandb file has behind a header of 7 bytes
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
WORDS = [
    "methods=[source,dpcore]", "dpcore.num_source=64", "dpcore.steps_new=2", "dataset.num_images=20",
    "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=8", "trainer=cpu",
]  # fmt: skip


def read_records(path: Path) -> Iterator[object]:
    """The records of a .wandb file."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    position, parts = 7, []
    while position + 7 <= len(content):
        room = BLOCK - position % BLOCK
        if room < 7:  # the rest of a block that has no room for a header is padding
            position += room
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (FULL, LAST):
            record = pb.Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []
        else:
            assert kind in (FIRST, MIDDLE)


def items(updates) -> dict[str, object]:
    """Key-value items of a record; nested keys are joined by dots."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in updates}


class Logged:
    """The content of one W&B run."""

    def __init__(self, folder: Path) -> None:
        (path,) = folder.glob("wandb/offline-run-*/*.wandb")
        self.folder = folder
        self.records = list(read_records(path))
        runs = self.of_kind("run")
        self.run = runs[0]
        self.config = {k: v for run in runs for k, v in items(run.config.update).items()}
        self.history = [items(record.item) for record in self.of_kind("history")]
        self.steps = [row for row in self.history if "stream/error" in row]
        self.summary = {k: v for record in self.of_kind("summary") for k, v in items(record.update).items()}
        self.result = json.loads((folder / "result.json").read_text())
        path = folder / "batches.csv"
        self.rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []

    def of_kind(self, kind: str) -> list:
        return [getattr(r, kind) for r in self.records if r.WhichOneof("record_type") == kind]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    home = tmp_path_factory.mktemp("wandb")
    before = os.environ.get("WANDB_MODE")
    places = [f"output={home}/runs", f"cache_dir={home}/cache"]
    done = CliRunner().invoke(app, ["bench", *WORDS, "logger=wandb", "logger.mode=offline", *places])
    assert done.exit_code == 0, done.output
    assert "anonymous" not in done.output
    assert os.environ.get("WANDB_MODE") == before
    return {path.parent.name: Logged(path) for path in home.glob("runs/*/*/*/seed*")}


METHODS = ("source", "dpcore")


def test_every_method_has_a_run_of_its_own(logged):
    assert len({content.run.run_id for content in logged.values()}) == 2


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

    def test_has_a_table_of_the_domains_errors(self, logged, method):
        (row,) = [row for row in logged[method].history if "domain_error._type" in row or "domain_error" in row]
        (table,) = logged[method].folder.glob("wandb/offline-run-*/files/media/table/domain_error_*.table.json")
        content, result = json.loads(table.read_text()), logged[method].result
        assert content["columns"] == ["domain", "error", "samples"]
        assert {name: error for name, error, _ in content["data"]} == result["domain_error"]
        assert "stream/error" not in row

    def test_has_ended(self, logged, method):
        assert [record.exit_code for record in logged[method].of_kind("exit")] == [0]


def test_a_failed_run_ends_as_failed(tmp_path):
    words = ["method=dpcore", "method.num_source=5000", *WORDS[3:], "logger.mode=offline"]
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
    assert sorted(p.name for p in folder.iterdir()) == ["batches.csv", "config.yaml", "result.json", "stream.json"]
