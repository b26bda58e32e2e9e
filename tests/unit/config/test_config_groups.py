"""Loggers, callbacks and the user's own folder: configuration groups that users can extend."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest
from hydra.core.config_store import ConfigStore
from rich.console import Console

from tta_bench.config.compose import compose_run, options, plain
from tta_bench.config.words import ConfigError
from tta_bench.experiments.bench import make_plan, tables_apart
from tta_bench.experiments.run import Run
from tta_bench.results.checks import check_run

SMALL = ["dataset.num_images=8", "dataset.domains=[fog]", "setting.batch_size=4", "trainer=cpu", "method=source"]
OWN = """
import lightning.pytorch as L
from lightning.pytorch.loggers import CSVLogger


class Steps(L.Callback):
    seen = []

    def __init__(self, every: int = 1):
        self.every = every

    def on_test_batch_end(self, trainer, module, outputs, batch, batch_idx, *_):
        if batch_idx % self.every == 0:
            Steps.seen.append(batch_idx)


class NotReady(L.Callback):
    def __init__(self):
        raise RuntimeError("no such sensor")


class Speechless(L.Callback):
    def __init__(self):
        raise RuntimeError
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "owngroups.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "owngroups"
    sys.modules.pop("owngroups", None)
    for name in ("Steps", "NotReady"):
        ConfigStore.instance().repo.get("callbacks", {}).pop(f"{name}.yaml", None)


def run(tmp_path, *words):
    """The result of a small run and its folder."""
    job = Run(compose_run([*SMALL, *words, f"output={tmp_path}/runs", f"cache_dir={tmp_path}"]))
    return job.execute(Console(file=io.StringIO())), job.folder


def refused(*words):
    with pytest.raises(ConfigError) as caught:
        compose_run(words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestLoggers:
    def test_two_at_once_and_one_writes_into_the_run_folder(self, tmp_path):
        result, folder = run(tmp_path, "logger=[wandb,csv]", "logger.wandb.mode=offline")
        assert result["status"] == "done"
        (metrics,) = folder.glob("csv/version_0/metrics.csv")
        with metrics.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["stream/step"]) for row in rows if row.get("stream/step")] == [0.0, 1.0]
        assert list(folder.glob("wandb/offline-run-*"))

    def test_one_that_cannot_be_made_is_a_failed_run_with_the_remedy(self, tmp_path, monkeypatch):
        def lacking(*_, **__):
            raise ModuleNotFoundError("No module named 'tensorboard'")

        monkeypatch.setattr("lightning.pytorch.loggers.tensorboard.TensorBoardLogger.__init__", lacking)
        result, _ = run(tmp_path, "logger=tensorboard")
        assert result["status"] == "failed"
        assert result["error"].startswith("cannot create the logger tensorboard (No module named 'tensorboard')")

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["logger.project=mine"], "did you mean 'logger.wandb.project'?"),
            (["logger=off", "logger.wandb.project=mine"], "this run has no logger"),
            (["logger.wandb.mode=ofline"], "logger.wandb.mode must be one of auto, online, offline; got 'ofline'"),
            (["logger=[wandb,cvs]"], "did you mean 'csv'?"),
            (["logger=json.JSONDecoder"], "JSONDecoder is not a Logger"),
        ],
    )
    def test_a_wrong_word_names_the_right_one(self, words, told):
        assert told in refused(*words)

    def test_none_is_a_logger_of_no_name(self):
        assert plain(compose_run(["logger=off"]).config)["logger"] == {}


class TestCallbacks:
    def test_a_class_of_ones_own_is_called_with_its_keys(self, own, tmp_path):
        result, _ = run(tmp_path, "logger=off", f"callbacks=[{own}.Steps]", "callbacks.Steps.every=2")
        assert result["status"] == "done"
        assert sys.modules[own].Steps.seen == [0]

    def test_a_wrong_key_of_it_is_refused(self, own):
        words = [f"callbacks={own}.Steps", "callbacks.Steps.evry=2"]
        assert "did you mean 'callbacks.Steps.every'?" in refused(*words)
        assert "callbacks.Steps.every must be an integer" in refused(words[0], "callbacks.Steps.every=often")


class TestTheUsersFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        for name, text in {
            "method/mine.yaml": "defaults: [tent, _self_]\nlr: 0.5\n",
            "callbacks/stats.yaml": "stats: {_target_: lightning.pytorch.callbacks.DeviceStatsMonitor}\n",
            "setting/csc.yaml": "rounds: 3\n",
            "setting/repeating.yaml": "defaults: [cdc, _self_]\nrounds: 4\n",
        }.items():
            (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "own" / name).write_text(text)
        return tmp_path / "own"

    def test_is_searched_before_the_packages(self, folder):
        place = f"config_dir={folder}"
        assert compose_run(["method=mine", place]).config.method.lr == 0.5
        assert compose_run(["setting=csc", place]).config.setting.rounds == 3
        assert compose_run(["setting=repeating", place]).config.setting.rounds == 4
        assert compose_run(["setting=repeating"]).config.setting.rounds == 10
        assert list(compose_run(["callbacks=[stats]", place]).config.callbacks) == ["stats"]

    def test_may_come_from_the_environment(self, folder, monkeypatch):
        assert "there is no method 'mine'" in refused("method=mine")
        monkeypatch.setenv("TTA_BENCH_CONFIG_DIR", str(folder))
        assert "mine" in options("method")
        assert compose_run(["method=mine"]).config.method.lr == 0.5

    def test_has_methods_that_a_bench_can_be_told_of(self, folder):
        jobs = make_plan(["methods=[source,mine]", "mine.momentum=0.5", f"config_dir={folder}"]).compose()
        assert jobs[1].config.method.momentum == 0.5

    def test_that_is_not_there_is_refused(self, tmp_path):
        assert f"there is no folder {tmp_path}/none" in refused(f"config_dir={tmp_path}/none")

    def test_may_hold_tuned_values_of_the_method_only(self, folder):
        file = folder / "tuned" / "shapes_c" / "tent.yaml"
        file.parent.mkdir(parents=True)
        file.write_text("# @package _global_\nmethod: {lr: 0.25}\n")
        composed = compose_run(["method=tent", f"config_dir={folder}"])
        assert (composed.config.method.lr, composed.tuned) == (0.25, str(file))
        file.write_text("# @package _global_\nmethod: {lr: 0.25}\nsetting: {batch_size: 4}\n")
        told = refused("method=tent", f"config_dir={folder}")
        assert told.startswith(f"{file} sets setting: a file of tuned values may contain only keys of its method")


def test_the_tuned_file_is_named_in_the_result(tmp_path):
    assert run(tmp_path, "logger=off")[0]["tuned"] is None
    assert Run(compose_run(["method=vida", "dataset.num_images=4"])).header()["tuned"] == "tuned/shapes_c/vida.yaml"


def test_methods_share_a_stream_on_every_data_set_unless_it_is_said_that_they_do_not():
    for dataset in ("cifar10_c", "cifar100_c"):
        words = [f"dataset={dataset}", "methods=all", "model=timm", "model.name=x"]
        assert tables_apart(make_plan(words).compose()) is None
    told = tables_apart(make_plan(["methods=[source,tent,dpcore]", "tent.setting.batch_size=4"]).compose())
    assert told == (
        "these runs cannot be compared in one table: setting.batch_size is 64 for source, dpcore and 4 for tent"
    )


class TestWhileTheTrainerIsBuilt:
    @pytest.mark.parametrize(
        "variables",
        [
            {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job", "SLURM_PROCID": "3"},
            {
                "TORCHELASTIC_RUN_ID": "none",
                "RANK": "1",
                "LOCAL_RANK": "1",
                "WORLD_SIZE": "4",
                "MASTER_ADDR": "nowhere",
                "MASTER_PORT": "1",
            },
            {"LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "/no/where", "JSM_NAMESPACE_LOCAL_RANK": "1"},
            {"KUBERNETES_PORT": "1", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1", "WORLD_SIZE": "4"},
        ],
        ids=["SLURM", "torchrun", "LSF", "Kubeflow"],
    )
    def test_variables_of_a_cluster_do_not_matter_to_one_device(self, tmp_path, monkeypatch, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert run(tmp_path, "logger=off")[0]["status"] == "done"

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["callbacks=owngroups.Speechless"], "the callback Speechless cannot be created: RuntimeError"),
            (["callbacks=owngroups.NotReady"], "the callback NotReady cannot be created: no such sensor"),
            (["callbacks=lightning.pytorch.callbacks.RichProgressBar"], "the trainer cannot be created: Trainer was"),
            (["trainer.accelerator=tpu"], "the trainer cannot be created: "),
            (
                ["trainer=cpu", "trainer.precision=16-mixed"],
                "trainer.precision=16-mixed does not run on cpu: use",
            ),
        ],
    )
    def test_whatever_fails_is_a_failed_run(self, own, tmp_path, words, told):
        result, folder = run(tmp_path, "logger=off", *words)
        assert result["status"] == "failed"
        assert result["error"].startswith(told)
        assert "\n" not in result["error"]
        assert json.loads((folder / "result.json").read_text())["error"] == result["error"]
        assert [sentence for found in check_run(result).values() for sentence in found] == []


def test_the_precision_of_matrix_products_is_recorded_and_set_anew_by_every_run(tmp_path):
    known = [run(tmp_path, "logger=off", "trainer=cpu", f"trainer.matmul={m}") for m in ("medium", "null")]
    assert [result["matmul"] for result, _ in known] == ["medium", "highest"]
    assert known[0][1].name != known[1][1].name


@pytest.mark.parametrize("precision", ["16-treu", "99"])
def test_a_precision_that_a_run_does_not_have_is_refused_with_those_that_it_has(precision):
    allowed = "trainer.precision must be one of 32-true, 16-mixed, bf16-mixed, 16-true, bf16-true, 64-true; got "
    assert refused(f"trainer.precision={precision}").startswith(allowed)


@pytest.mark.parametrize("words", [[f"seed={2**70}"], [f"seed={2**63}"]])
def test_a_seed_beyond_what_torch_takes_is_one_sentence(words):
    assert refused(*words).startswith(f"seed must be less than {2**63}; got ")


def test_the_seeds_of_a_bench_are_held_to_the_same():
    with pytest.raises(ConfigError, match=r"^seeds must be a list, each item less than 9223372036854775808; got"):
        make_plan([f"seeds=[0,{2**70}]"])
