"""``tta-bench verify`` and ``run --from`` on a real run, and on the same run after edits."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from tta_bench.cli.app import app
from tta_bench.results.run_folder import read_results, whole_rows, write_result

SMALL = ["method=tent", "method.lr=0.01", "setting=csc", "setting.batch_size=8", "dataset.num_images=16",
         "dataset.domains=[gaussian_noise,fog]", "logger=off", "trainer=cpu"]  # fmt: skip


def invoke(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("made")
    done = invoke("run", *SMALL, f"output={home}/runs")
    assert done.exit_code == 0, done.output
    return next(home.glob("runs/*/*/*/seed*"))


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def test_a_run_that_nobody_changed_is_verified_and_gives_the_same_batches_again(folder):
    done = invoke("verify", folder, "--rerun", "--batches", 3)
    assert done.exit_code == 0, done.output
    assert "3 batches are the same" in done.output
    assert "problem" not in done.output


def test_an_edited_batch_is_found_by_running_it_again_where_all_checksums_were_made_anew(folder):
    path = folder / "batches.csv"
    path.write_bytes(path.read_bytes().replace(b"1,gaussian_noise,8,", b"1,gaussian_noise,8,1", 1))
    (content,) = read_results([folder])
    write_result(folder, content)
    done = invoke("verify", folder, "--rerun", "--batches", 2)
    assert done.exit_code == 1
    assert "1 of 2 batches differ, first batch 1 in by_domain" in done.output


@pytest.mark.parametrize("key", ["weights_sha256", "code_sha256"])
def test_other_weights_and_other_code_are_told(folder, key):
    (content,) = read_results([folder])
    write_result(folder, {**content, key: "0" * 64})
    done = invoke("verify", folder)
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if "problem" in line]
    assert key in line
    again = invoke("run", "--from", folder, f"output={folder}/again")
    assert again.exit_code == 2
    assert f"cannot be repeated here, because {key} has changed since" in again.output


def test_a_run_on_two_devices_is_not_verified_once_by_each(folder):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("devices: 1", "devices: 2"))
    (content,) = read_results([folder])
    write_result(folder, content)
    done = invoke("verify", folder, "--rerun")
    assert done.exit_code == 0, done.output
    assert "a run on several devices is not repeated here: use tta-bench run --from" in done.output
    assert "batches are the same" not in done.output


def test_a_run_is_repeated_from_its_files_alone(folder):
    done = invoke("run", "--from", folder, f"output={folder}/again")
    assert done.exit_code == 0, done.output
    (again,) = folder.glob("again/*/*/*/seed*")
    before, after = (json.loads((path / "result.json").read_text()) for path in (folder, again))
    assert after["domain_error"] == before["domain_error"]
    assert [r.by_domain for r in whole_rows(again / "batches.csv")] == [
        r.by_domain for r in whole_rows(folder / "batches.csv")
    ]


def test_code_from_outside_the_package_is_never_run(folder):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("_target_: tta_bench.methods", "_target_: subprocess", 1))
    done = invoke("run", "--from", folder)
    assert done.exit_code == 2
    assert "which is not part of this package" in done.output
