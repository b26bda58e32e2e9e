"""The command line from overrides to run folders: the files, and messages for mistakes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.helpers.commands import invoke
from tta_bench.cli.app import app
from tta_bench.cli.show import make_schedule
from tta_bench.config.compose import compose_run, plain
from tta_bench.models.loading import load_model as loading
from tta_bench.results.run_folder import COLUMNS
from tta_bench.streams import Schedule

SMALL = ["dataset.num_images=20", "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=8", "trainer=cpu"]
PROMISED = [
    "schema", "method", "setting", "dataset", "model", "seed", "status", "mean_error", "sample_error", "domain_error",
    "num_samples", "source_mean_error", "forward_per_sample", "backward_per_sample", "coreset_size",
    "trainable_parameters", "extra_parameters", "seconds", "seconds_per_batch_median", "peak_memory_bytes",
    "prediction_timing", "needs_source", "stream_sha256", "weights_sha256", "preprocess", "config", "versions",
    "device", "started", "finished", "notices",
]  # fmt: skip
FAILING = """
import torch
from tta_bench.methods import Source


class Failing(Source):
    def __init__(self, backbone, *, at: int = 3, how: str = "raise", seed: int = 0):
        super().__init__(backbone, seed=seed)
        self.at, self.how, self.step = at, how, 0

    def forward_and_adapt(self, images):
        self.step += 1
        if self.step <= self.at:
            return super().forward_and_adapt(images)
        if self.how == "raise":
            raise RuntimeError("the batch [tent] is one too many")
        return torch.full((len(images), 10), float("nan"))


class Refusing(Source):
    def __init__(self, backbone, *, seed: int = 0):
        raise ValueError("this method cannot be built")


class Unready(Source):
    def configure_adaptation(self):
        raise ValueError("this network has no prompts")

    def extra_parameters(self):
        return self.prompt.numel()
"""


def results(home):
    return {r["method"]: r for r in (json.loads(p.read_text()) for p in sorted(home.rglob("result.json")))}


def folder_of(home, method):
    (folder,) = home.glob(f"runs/*/*/{method}/seed*")
    return folder


def rows(folder):
    with (folder / "batches.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def own_methods(tmp_path, monkeypatch):
    (tmp_path / "ownmethods.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ownmethods", None)
    for name in ("Failing", "Refusing", "Unready"):
        ConfigStore.instance().repo["method"].pop(f"{name}.yaml", None)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One bench of three methods."""
    folder = tmp_path_factory.mktemp("bench")
    words = ["methods=[source,tent,dpcore]", "dpcore.num_source=64", "dpcore.steps_new=2", "tent.lr=0.01"]
    done = invoke("bench", *SMALL, *words, home=folder)
    assert done.exit_code == 0, done.output
    folder.joinpath("output.txt").write_text(done.output)
    return folder


METHODS = ("source", "tent", "dpcore")


@pytest.mark.parametrize("method", METHODS)
class TestAFinishedRun:
    def test_has_every_promised_key(self, home, method):
        result = results(home)[method]
        assert [key for key in PROMISED if key not in result] == []
        assert (result["status"], result["method"], result["seed"]) == ("done", method, 0)

    def test_has_the_promised_columns_in_order_then_the_methods_own(self, home, method):
        header = list(rows(folder_of(home, method))[0])
        assert header[: len(COLUMNS)] == list(COLUMNS)
        assert ("distance_raw" in header) == (method == "dpcore")

    def test_its_errors_follow_from_its_rows(self, home, method):
        result, batches = results(home)[method], rows(folder_of(home, method))
        samples, wrong = Counter(), Counter()
        for row in batches:
            samples[row["domain"]] += int(row["samples"])
            wrong[row["domain"]] += int(row["wrong"])
            so_far = 100 * sum(wrong.values()) / sum(samples.values())
            assert float(row["running_error"]) == pytest.approx(so_far)
            assert float(row["error"]) == pytest.approx(100 * int(row["wrong"]) / int(row["samples"]))
        errors = {name: 100 * wrong[name] / n for name, n in samples.items()}
        assert result["num_samples"] == dict(samples) == {"gaussian_noise": 20, "fog": 20}
        assert result["domain_error"] == pytest.approx(errors)
        assert result["mean_error"] == pytest.approx(sum(errors.values()) / 2)
        assert result["sample_error"] == pytest.approx(100 * wrong.total() / 40)
        forward = sum(int(row["forward_samples"]) for row in batches)
        backward = sum(int(row["backward_samples"]) for row in batches)
        assert (result["forward_per_sample"], result["backward_per_sample"]) == (forward / 40, backward / 40)
        assert result["seconds"] == pytest.approx(sum(float(row["seconds"]) for row in batches), abs=1e-4)
        assert [int(row["step"]) for row in batches] == list(range(len(batches)))
        last = batches[-1]["coreset_size"]
        assert result["coreset_size"] == (int(float(last)) if last else None)

    def test_its_stream_file_is_the_stream_that_it_saw(self, home, method):
        stream = Schedule.load(folder_of(home, method) / "stream.json")
        assert results(home)[method]["stream_sha256"] == stream.fingerprint()
        assert stream == make_schedule(SMALL[:3])
        assert [int(row["samples"]) for row in rows(folder_of(home, method))] == [len(s.indices) for s in stream]

    def test_its_configuration_file_makes_the_same_run(self, home, method):
        config = OmegaConf.load(folder_of(home, method) / "config.yaml")
        assert plain(config) == results(home)[method]["config"]
        assert plain(config)["setting"]["batch_size"] == 8

    def test_knows_the_error_of_source(self, home, method):
        assert results(home)[method]["source_mean_error"] == results(home)["source"]["mean_error"] is not None


def test_all_methods_saw_the_same_stream_weights_and_data(home):
    for key in ("stream_sha256", "weights_sha256", "data", "preprocess"):
        assert len({str(result[key]) for result in results(home).values()}) == 1


def test_the_comparison_shows_every_method_once(home):
    output = home.joinpath("output.txt").read_text()
    assert output.count("gain over source") == 1
    assert all(f" {method} " in output for method in METHODS)
    mean = results(home)["tent"]["mean_error"]
    assert f"{mean:.1f}" in next(line for line in output.splitlines() if "mean" in line)


def test_report_makes_the_same_table_from_the_folders_alone(home):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", str(home / "runs")])
    assert done.exit_code == 0
    lines = [line for line in home.joinpath("output.txt").read_text().splitlines() if "│" in line]
    # Columns stand in order of the folders' paths here, so the cells are compared, not the lines.
    assert [sorted(line.split()) for line in done.output.splitlines() if "│" in line] == [
        sorted(x.split()) for x in lines
    ]


def numbers(folder):
    """Rows without what may differ between two runs of the same numbers."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows(folder)]


@pytest.mark.parametrize("extra", [[], ["num_workers=2"]], ids=["again", "with two loader processes"])
def test_a_run_can_be_repeated(home, tmp_path, extra):
    words = ["method=dpcore", "method.num_source=64", "method.steps_new=2", *extra]
    assert invoke("run", *SMALL, *words, home=tmp_path).exit_code == 0
    again, first = folder_of(tmp_path, "dpcore"), folder_of(home, "dpcore")
    assert numbers(again) == numbers(first)
    assert again.name == first.name


def test_a_damaged_cache_is_measured_anew(tmp_path):
    words = [*SMALL, "method=dpcore", "method.num_source=64", "method.steps_new=1", "resume=never"]
    assert invoke("run", *words, home=tmp_path).exit_code == 0
    (cached,) = tmp_path.glob("cache/source/*.safetensors")
    cached.write_bytes(b"damaged")
    before = numbers(folder_of(tmp_path, "dpcore"))
    assert invoke("run", *words, home=tmp_path).exit_code == 0
    assert results(tmp_path)["dpcore"]["source_cached"] is False
    assert numbers(folder_of(tmp_path, "dpcore")) == before
    assert cached.stat().st_size > len(b"damaged")


def test_a_single_run_does_not_know_the_error_of_source(tmp_path):
    assert invoke("run", *SMALL, "method=source", home=tmp_path).exit_code == 0
    assert results(tmp_path)["source"]["source_mean_error"] is None


class TestTheSourceCache:
    WORDS = (
        "run", *SMALL, "resume=never", "method=dpcore", "method.num_source=64", "method.steps_new=1",
        "dataset.num_images=8",
    )  # fmt: skip

    def test_statistics_are_measured_once(self, tmp_path):
        first, second = (invoke(*self.WORDS, home=tmp_path) for _ in range(2))
        assert ": source phase" in first.output
        assert ": source phase" not in second.output
        assert results(tmp_path)["dpcore"]["source_cached"] is True
        assert len(list(tmp_path.glob("cache/source/*.safetensors"))) == 1

    def test_it_can_be_filled_beforehand_and_its_cost_is_told_apart(self, tmp_path):
        words = [w for w in self.WORDS[1:] if w != "resume=never"]
        first, second = (invoke("source", "stats", *words, home=tmp_path) for _ in range(2))
        assert "(64 images forward, 0 backward)" in first.output
        assert "already cached (0 images forward" in second.output
        invoke("run", *words, home=tmp_path)
        result = results(tmp_path)["dpcore"]
        assert (result["source_cached"], result["source_forward_samples"]) == (True, 0)
        invoke("run", *words, "method.num_source=100", home=tmp_path)
        costs = {json.loads(p.read_text())["source_forward_samples"] for p in tmp_path.rglob("result.json")}
        assert costs == {0, 100}  # of the second batch of 64, no more than are wanted

    def test_a_method_without_needs_says_so(self, tmp_path):
        done = invoke("source", "stats", "method=tent", home=tmp_path)
        assert (done.exit_code, "tent needs no source images" in done.output) == (2, True)

    @pytest.mark.parametrize("word", ["method.num_source=32", "model.preprocess=native", "method.prompt_length=4"])
    def test_another_measurement_has_another_key(self, tmp_path, word):
        invoke(*self.WORDS, home=tmp_path)
        invoke(*self.WORDS, word, home=tmp_path)
        assert len(list(tmp_path.glob("cache/source/*.safetensors"))) == 2

    def test_other_weights_have_another_key(self, tmp_path):
        state = load_file(Path(loading.__file__).parents[1] / "weights" / "shapes_vit.safetensors")
        state["norm.bias"] = state["norm.bias"] + 1
        save_file(state, tmp_path / "w.safetensors")
        invoke(*self.WORDS, home=tmp_path)
        invoke(*self.WORDS, f"model.checkpoint={tmp_path}/w.safetensors", home=tmp_path)
        assert len(list(tmp_path.glob("cache/source/*.safetensors"))) == 2

    def test_what_the_source_does_not_depend_on_keeps_the_key(self, tmp_path):
        invoke(*self.WORDS, home=tmp_path)
        done = invoke(*self.WORDS, "method.lr=0.5", "dataset.severity=2", "setting=csc", home=tmp_path)
        assert ": source phase" not in done.output

    def test_other_source_images_have_another_key(self, tmp_path):
        for name, shift in (("a", 0), ("b", 1)):
            images = np.full((12, 64, 64, 3), 100, dtype=np.uint8)
            images[0, 0, 0, 0] += shift
            labels = np.arange(12) % 10
            arrays = {"test_images": images[:8], "test_labels": labels[:8]}
            np.savez(tmp_path / f"{name}.npz", **arrays, source_images=images, source_labels=labels)
            words = [
                *self.WORDS[:-1],
                "method.num_source=12",
                "dataset=corrupted",
                f"dataset.images={tmp_path}/{name}.npz",
            ]
            words.remove("dataset.num_images=20")
            done = invoke(*words, home=tmp_path)
            assert done.exit_code == 0, done.output
        assert len(list(tmp_path.glob("cache/source/*.safetensors"))) == 2


@pytest.mark.usefixtures("own_methods")
class TestAFailingMethod:
    @pytest.mark.parametrize(
        ("how", "message"),
        [("raise", "RuntimeError: the batch [tent] is one too many"), ("nan", "not finite at step 3")],
    )
    def test_keeps_its_rows_says_why_and_lets_the_others_go_on(self, tmp_path, how, message):
        words = ["methods=[ownmethods.Failing,source]", f"Failing.how={how}"]
        done = invoke("bench", *SMALL, *words, home=tmp_path)
        assert done.exit_code == 1
        assert message in done.output
        failed, source = results(tmp_path)["Failing"], results(tmp_path)["source"]
        assert failed["status"] == "failed"
        assert message in failed["error"]
        assert [key for key in PROMISED if key not in failed] == []
        assert len(rows(folder_of(tmp_path, "Failing"))) == 3
        assert sum(failed["num_samples"].values()) == 24
        assert source["status"] == "done"
        assert "Failing (1 failed)" in done.output

    def test_frees_the_terminal_for_the_next_run(self, tmp_path, monkeypatch):
        from rich.console import Console

        from tta_bench.experiments.bench import bench

        with (tmp_path / "terminal").open("w") as file:
            console = Console(file=file, force_terminal=True, width=80)
            words = ["methods=[ownmethods.Failing,source]", "logger=off", f"output={tmp_path}", f"cache_dir={tmp_path}"]
            assert [r["status"] for r in bench([*SMALL, *words], console)] == ["failed", "done"]

    def test_that_cannot_be_built_is_refused_before_anything_runs(self, tmp_path):
        done = invoke("bench", *SMALL, "methods=[source,ownmethods.Refusing]", home=tmp_path)
        assert (done.exit_code, results(tmp_path)) == (2, {})
        assert "error: this method cannot be built" in done.output

    def test_that_wants_more_source_images_than_there_are_is_told_of_at_once(self, tmp_path):
        done = invoke("bench", *SMALL, "methods=[source,eata]", "eata.num_source=4001", home=tmp_path)
        reason = "EATA needs 4001 source images, but shapes_c has 4000: lower num_source"
        assert done.output.index(f"eata will fail: {reason}") < done.output.index("eata seed 0 failed")
        assert done.exit_code == 1
        assert {name: r["status"] for name, r in results(tmp_path).items()} == {"source": "done", "eata": "failed"}
        assert results(tmp_path)["eata"]["error"] == f"ValueError: {reason}"

    def test_that_never_got_ready_says_why_and_not_what_broke_afterwards(self, tmp_path):
        done = invoke("run", *SMALL, "method=ownmethods.Unready", home=tmp_path)
        assert done.exit_code == 1
        result = results(tmp_path)["Unready"]
        assert result["error"] == "ValueError: this network has no prompts"
        assert (result["extra_parameters"], result["mean_error"]) == (None, None)

    def test_a_run_ends_with_status_1(self, tmp_path):
        done = invoke("run", *SMALL, "method=ownmethods.Failing", home=tmp_path)
        assert done.exit_code == 1
        assert "failed: RuntimeError: the batch [tent] is one too many" in done.output


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "method.lrr=1"], "'method.lr'"),
        (["run", "dataset=corrupted"], "dataset.images"),
        (["run", "dataset=corrupted", "dataset.images=/no/where"], "/no/where"),
        (["run", "dataset.domains=[fogg]"], "'fog'"),
        (["run", "model=local"], "model.checkpoint"),
        (["run", "trainer.accelerator=foo"], "accelerator"),
        (["run", "trainer.precision=99"], "trainer.precision must be one of 32-true"),
        (["bench", "method=tent"], "methods=[tent]"),
        (["bench", "methods=[source,tnet]"], "'tent'"),
        (["bench", "seeds=[a]"], "seeds must be a list"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_usage_error_is_one_line_and_writes_nothing(tmp_path, words, part):
    command, *rest = words
    done = invoke(command, "trainer=cpu", "dataset.num_images=4", *rest, home=tmp_path)
    if "dataset=corrupted" in words:
        done = invoke(command, "trainer=cpu", *rest, home=tmp_path)
    assert done.exit_code == 2
    lines = done.output.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert part in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_wandb_mode_is_one_line(tmp_path):
    done = CliRunner().invoke(app, ["run", *SMALL, "logger.wandb.mode=ofline", f"output={tmp_path}", "method=source"])
    assert done.exit_code == 2
    assert "error: logger.wandb.mode must be one of auto, online, offline; got 'ofline'" in done.output


def write_folder(root, sizes):
    """An image folder of ten class folders with images of these sizes."""
    rng = np.random.default_rng(0)
    for i, size in enumerate(sizes):
        folder = root / f"class{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(folder / f"{i:03}.png")


FOLDER_WORDS = ("run", "method=source", "dataset=corrupted", "dataset.domains=[clean]", "setting=csc", "trainer=cpu")


def test_images_of_several_sizes_name_the_remedy(tmp_path):
    write_folder(tmp_path / "images", [64] * 11 + [48])
    words = (*FOLDER_WORDS, f"dataset.images={tmp_path}/images")
    done = invoke(*words, home=tmp_path / "home")
    assert done.exit_code == 1
    assert "set dataset.image_size" in done.output
    assert invoke(*words, "dataset.image_size=64", home=tmp_path / "home").exit_code == 0


def test_a_truncated_image_is_named_and_the_rows_before_it_are_kept(tmp_path):
    write_folder(tmp_path / "images", [64] * 200)
    folder = tmp_path / "images"
    stream = make_schedule([f"dataset.images={folder}", "dataset=corrupted", "dataset.domains=[clean]", "setting=csc"])
    sampled = set(np.linspace(0, 199, 64).astype(int).tolist())  # what the digest reads before the run
    step, index = next((t, int(i)) for t in (2, 3) for i in stream[t].indices if int(i) not in sampled)
    paths = sorted(folder.rglob("*.png"))
    paths[index].write_bytes(paths[index].read_bytes()[:3000])
    done = invoke(*FOLDER_WORDS, f"dataset.images={folder}", home=tmp_path / "home")
    assert done.exit_code == 1
    result = results(tmp_path / "home")["source"]
    assert result["status"] == "failed"
    assert f"{paths[index]} is not a readable image: remove or replace it" in result["error"]
    assert len(rows(folder_of(tmp_path / "home", "source"))) == step


def test_missing_source_images_stop_only_who_needs_them(tmp_path):
    write_folder(tmp_path / "images", [64] * 10)
    words = ["dataset=corrupted", f"dataset.images={tmp_path}/images", "dataset.domains=[clean,fog]", "trainer=cpu"]
    done = invoke("bench", *words, "methods=[source,dpcore,tent]", home=tmp_path / "home")
    assert done.exit_code == 1
    found = results(tmp_path / "home")
    assert {name: r["status"] for name, r in found.items()} == {"source": "done", "dpcore": "failed", "tent": "done"}
    assert "set dataset.source_images" in found["dpcore"]["error"]
    assert "dpcore will fail: this method needs source images, and corrupted has none" in done.output
    assert "tent will fail" not in done.output


@pytest.mark.parametrize("what", ["methods", "settings", "datasets", "models"])
def test_list_shows_every_option(what):
    from tta_bench.config.compose import options

    done = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["list", what])
    assert done.exit_code == 0, done.output
    known = [name for name in options(what[:-1]) if name.islower()]  # classes that other tests registered have capitals
    assert set(known) <= {line.split()[0] for line in done.output.splitlines()}


def test_a_list_of_something_else_is_refused():
    done = CliRunner().invoke(app, ["list", "method"])
    assert done.exit_code == 2
    assert "methods, settings, datasets, models" in done.output


def test_stream_show_prints_the_fingerprint_of_the_run(home):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["stream", "show", *SMALL[:3]])
    assert done.exit_code == 0
    assert results(home)["tent"]["stream_sha256"] in done.output


def test_stream_show_draws_the_timeline(tmp_path):
    done = CliRunner().invoke(app, ["stream", "show", *SMALL[:3], "--plot", str(tmp_path / "t.svg")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "t.svg").stat().st_size > 1000
    assert CliRunner().invoke(app, ["stream", "show", "--plot", "t.bmp"]).exit_code == 2


@pytest.mark.parametrize("words", [["report"], ["report", "/no/where"], ["stream", "show", "setting=cdcc"]])
def test_other_mistakes_end_with_status_2(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_the_words_of_the_readme_compose():
    assert compose_run(["method=dpcore", "setting=cdc", "dataset=shapes_c", "seed=0"]).choices["method"] == "dpcore"


class TestAFreshProcess:
    def run(self, *command):
        return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)

    def test_help_is_there_at_once_and_does_not_import_torch(self):
        code = "import sys, tta_bench.cli; print('torch' in sys.modules, 'lightning' in sys.modules)"
        assert self.run("-c", code).stdout.split() == ["False", "False"]
        started = time.monotonic()
        code = "from tta_bench.cli import app; app(['--help'], prog_name='tta-bench')"
        assert "bench" in self.run("-c", code).stdout
        assert time.monotonic() - started < 2 * max(1.0, os.getloadavg()[0])

    def test_a_run_prints_nothing_that_is_not_ours(self, tmp_path):
        words = ["run", *SMALL, "method=tent", "logger=off", f"output={tmp_path}", f"cache_dir={tmp_path}"]
        done = self.run("-c", f"from tta_bench.cli import app; app({words!r})")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip().startswith("shapes_c · cdc · shapes_vit")


@pytest.mark.parametrize(("key", "expected"), [(None, "state_dict_ema"), ("state_dict", "state_dict")])
def test_the_state_dict_that_was_read_is_told(tmp_path, key, expected):
    own = loading.load_model("shapes_vit").vit.state_dict()
    raw = {name: value + 0.1 if value.is_floating_point() else value for name, value in own.items()}
    torch.save({"state_dict": raw, "state_dict_ema": own}, tmp_path / "w.pth")
    words = ["method=source", *SMALL, "dataset.domains=[fog]", f"model.checkpoint={tmp_path / 'w.pth'}"]
    chosen = [] if key is None else [f"model.checkpoint_key={key}"]
    done = invoke("run", *words, *chosen, home=tmp_path)
    assert done.exit_code == 0, done.output
    result = results(tmp_path)["source"]
    also = ["state_dict"] if key is None else []
    assert result["weights_origin"] == {"key": expected, "prefix": "", "also_fits": also}
    assert result["weights_sha256"] == loading.weights_sha256(own if key is None else raw)
    assert ("the weights are state_dict_ema; state_dict would fit, too" in done.output) == (key is None)
    report = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", f"{tmp_path}/runs", "--output", str(report)]).exit_code == 0
    assert f"read from {expected}<" in report.read_text()
    done = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["doctor", *words, *chosen, "logger=off"])
    assert f"read from {expected}" in done.output
    assert ("state_dict would fit, too" in done.output) == (key is None)
