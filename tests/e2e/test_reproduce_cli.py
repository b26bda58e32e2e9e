"""A table of the paper and a grid of hyper-parameters from the command line, on a few images."""

from __future__ import annotations

import csv
import json

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from tests.helpers.commands import invoke
from tta_bench.cli.app import app
from tta_bench.paper.tables import table_names

SMALL = (
    "dataset=shapes_c", "dataset.num_images=12", "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=6",
    "trainer=cpu", "dpcore.steps_new=2", "dpcore.num_source=16",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The components, once."""
    folder = tmp_path_factory.mktemp("components")
    done = invoke("reproduce", "components", *SMALL, home=folder)
    assert done.exit_code == 0, done.output
    folder.joinpath("output.txt").write_text(done.output)
    return folder


def lines(home, table="components"):
    with (home / f"runs/shapes_c/reproduce/{table}.csv").open(newline="") as file:
        return {(line["row"], line["column"]): line for line in csv.DictReader(file)}


def test_a_table_shows_what_its_runs_say(home):
    found = lines(home)
    results = {r["method"]: r for r in (json.loads(path.read_text()) for path in home.rglob("result.json"))}
    assert set(results) == {"source", "tent", "dpcore_exp1", "dpcore_exp2", "dpcore_exp3", "dpcore"}
    for name, method in (("Source", "source"), ("Exp-3", "dpcore_exp3"), ("DPCore", "dpcore")):
        error, seconds = results[method]["mean_error"], results[method]["seconds"]
        assert float(found[name, "Mean"]["ours"]) == pytest.approx(error)
        assert float(found[name, "Gain"]["ours"]) == pytest.approx(results["source"]["mean_error"] - error)
        assert float(found[name, "Time"]["ours"]) == pytest.approx(seconds / results["tent"]["seconds"])
    assert found["Exp-2", "Mean"]["paper"] == "48.3"
    assert {line["difference"] for line in found.values()} == {""}
    output = home.joinpath("output.txt").read_text()
    assert "on shapes_c, a substitute for imagenet_c" in " ".join(output.split())
    assert f"{results['dpcore']['mean_error']:.1f}" in output
    assert "dpcore.steps_new=2" in output
    assert (home / "runs/shapes_c/reproduce/components.png").stat().st_size > 1000
    assert "| DPCore | ours |" in (home / "runs/shapes_c/reproduce/components.md").read_text()


def test_what_has_run_is_not_run_again_not_even_by_another_table(home):
    before = {path: path.stat().st_mtime_ns for path in home.rglob("batches.csv")}
    done = invoke("reproduce", "single_domain_prompt", *SMALL, "methods=[source,tent,dpcore]", home=home)
    assert done.exit_code == 0, done.output
    assert done.output.count("already finished") == 3
    assert {path: path.stat().st_mtime_ns for path in home.rglob("batches.csv")} == before
    assert lines(home, "single_domain_prompt")["DPCore", "Mean"]["ours"] == lines(home)["DPCore", "Mean"]["ours"]


def test_a_failed_cell_leaves_the_others(home, tmp_path):
    done = invoke("reproduce", "components", *SMALL, "methods=[source,tent]", "tent.lr=-1.0", home=tmp_path)
    assert done.exit_code == 1
    found = lines(tmp_path)
    assert "learning rate" in found["Tent", "Mean"]["failed"]
    assert "Invalid learning rate" in done.output
    assert found["Source", "Mean"]["ours"] == lines(home)["Source", "Mean"]["ours"]
    assert found["Source", "Time"]["ours"] == ""


def test_a_dry_run_prints_commands_and_writes_nothing(tmp_path):
    done = invoke("reproduce", "memory_management", "dataset=shapes_c", "--dry-run", home=tmp_path)
    assert done.exit_code == 0
    commands = done.output.splitlines()
    assert len(set(commands)) == len(commands) == 40
    assert all(line.startswith("tta-bench run dataset=shapes_c ") for line in commands)
    assert sum("method=dpcore_merge15" in line for line in commands) == 10
    assert list(tmp_path.iterdir()) == []


def test_the_list_has_every_table_with_its_cost():
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["reproduce", "list"])
    assert done.exit_code == 0
    assert [name for name in table_names() if f" {name} " not in done.output] == []
    assert "2.5 (5k), 25 (50k)" in done.output


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["reproduce", "component"], "did you mean 'components'?"),
        (["reproduce", "components"], "dataset.root has no value"),
        (["reproduce", "components", "setting=cdc"], "components sets setting itself"),
        (["reproduce", "acdc_cdc"], "or use embedded data, as in acdc_cdc dataset=streets_c"),
        (["reproduce", "acdc_cdc", "dataset=shapes_c"], "needs classes of pixels"),
        (["tune", "method=tent", "dataset=streets_c"], "streets_c has no validation corruptions"),
        (["tune"], "method=tent"),
        (["tune", "method=tent", "dataset.domains=[fog]"], "only on the validation corruptions"),
    ],
)
def test_a_usage_error_is_one_line_and_writes_nothing(tmp_path, words, part):
    done = invoke(*words, home=tmp_path)
    assert done.exit_code == 2
    (line,) = done.output.strip().splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert list(tmp_path.iterdir()) == []


def test_tuning_writes_the_best_point_and_repeats_nothing(tmp_path):
    words = ["tune", "method=tent", "dataset.num_images=12", "setting.batch_size=6", "trainer=cpu"]
    options = ["--grid", "lr=[0.01,1.0]", "--output", str(tmp_path / "best.yaml")]
    first, second = (invoke(*words, *options, home=tmp_path) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    assert second.output.count("already finished") == 3
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert {tuple(r["domains"]) for r in results} == {("speckle_noise", "gaussian_blur", "spatter", "saturate")}
    assert {r["config"]["dataset"]["split"] for r in results} == {"validation"}
    best = min(results, key=lambda r: r["mean_error"])
    chosen = OmegaConf.load(tmp_path / "best.yaml")
    errors = {r["config"]["method"]["lr"]: r["mean_error"] for r in results}
    assert errors[chosen.method.lr] == best["mean_error"]
    assert list(chosen) == ["method"]
