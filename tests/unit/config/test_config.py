"""Command-line overrides: all documented ones work, and wrong ones are reported in one sentence."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra_zen import instantiate

from tta_bench.config import compose as config_module
from tta_bench.config import registry as nodes
from tta_bench.config.compose import compose_run, compose_stream, plain, require
from tta_bench.config.words import ConfigError
from tta_bench.experiments.run import Run

DEVICE_STATS = {"_target_": "lightning.pytorch.callbacks.DeviceStatsMonitor", "cpu_stats": True}
OWN_METHOD = """
from tta_bench.methods import Source


class Scaled(Source):
    def __init__(self, backbone, *, gain: float = 1.0, seed: int = 0):
        super().__init__(backbone, seed=seed)
        self.gain = gain
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "mypkg.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mypkg", None)
    ConfigStore.instance().repo["method"].pop("Scaled.yaml", None)


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A copy of the configuration folder that a test may add files to."""
    folder = tmp_path / "configs"
    shutil.copytree(nodes.config_folder(), folder)
    monkeypatch.setattr(config_module, "config_folder", lambda: folder)
    return folder


def sentence(*words: str) -> str:
    """The message with which a run of these words is refused before anything is written."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        Run(compose_run(["dataset.num_images=4", "dataset.domains=[clean]", *words]))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("words", "group", "key", "value"),
    [
        (["method.lr=0.05"], "method", "lr", 0.05),
        (["method=dpcore_official"], "method", "lr", 0.1),
        (["method=dpcore_official", "method.lr=0.2"], "method", "lr", 0.2),
        (["method=tent", "method.optimizer=adam"], "method", "optimizer", "adam"),
        (["setting=cdc", "setting.delta=0.1"], "setting", "delta", 0.1),
        (["setting=repeating", "setting.rounds=3"], "setting", "rounds", 3),
        (["dataset.severity=3"], "dataset", "severity", 3),
        (["dataset=shapes_c_validation"], "dataset", "split", "validation"),
        (["dataset=corrupted", "dataset.images=here.npz"], "dataset", "images", "here.npz"),
        (["dataset=corrupted", "dataset.images=a", "dataset.image_size=64"], "dataset", "image_size", 64),
        (["dataset=imagenet_c", "dataset.subset=robustbench"], "dataset", "subset", "robustbench"),
        (["dataset=cifar100_c", "dataset.severity=3"], "dataset", "severity", 3),
        (["dataset=image_folder", "dataset.domains=[photo,sketch]"], "dataset", "domains", ["photo", "sketch"]),
        (["dataset=packed", "dataset.domains=fog"], "dataset", "domains", "fog"),
        (["model=local", "model.checkpoint=w.pth", "model.config=w.yaml"], "model", "checkpoint", "w.pth"),
        (["dataset=shapes_c", "model=timm", "model.name=vit_x.y"], "model", "name", "vit_x.y"),
        (["model.mean=[0,0,0]"], "model", "mean", [0, 0, 0]),
        (["trainer=cpu"], "trainer", "accelerator", "cpu"),
        (
            ["callbacks=[device_stats]", "callbacks.device_stats.cpu_stats=true"],
            "callbacks",
            "device_stats",
            DEVICE_STATS,
        ),
    ],
)
def test_a_promised_word_sets_its_key(words, group, key, value):
    assert plain(compose_run(words).config)[group][key] == value


def test_the_later_of_two_words_wins():
    composed = compose_run(["setting=cdc", "seed=1", "setting=csc", "seed=2"])
    assert (composed.choices["setting"], composed.config.seed) == ("csc", 2)


def test_choices_name_what_was_chosen_in_each_group():
    choices = compose_run(["method=dpcore_official", "setting=csc", "logger=off"]).choices
    assert choices["method"] == "dpcore_official"
    assert choices["setting"] == "csc"
    assert choices["dataset"] == choices["dataset"].strip() == "shapes_c"


@pytest.mark.parametrize("name", config_module.options("dataset") or ["shapes_c"])
def test_every_dataset_composes(name):
    assert compose_stream([f"dataset={name}"]).choices["dataset"] == name


@pytest.mark.parametrize(
    ("words", "model", "name"),
    [
        (["dataset=scenes_c"], "scenes_vit", "scenes_vit"),
        (["dataset=scenes_c_validation"], "scenes_vit", "scenes_vit"),
        (["dataset=scenes_c", "model=timm"], "timm", None),
        ([], "shapes_vit", "shapes_vit"),
    ],
)
def test_an_embedded_data_set_brings_its_source_model(words, model, name):
    composed = compose_run(words)
    assert (composed.choices["model"], composed.config.model.name) == (model, name)


def test_the_stream_of_a_run_is_the_stream_that_is_shown():
    words = ["setting=cdc", "setting.delta=0.3", "dataset.severity=2", "seed=4"]
    run, stream = plain(compose_run(words).config), plain(compose_stream(words).config)
    assert stream == {key: run[key] for key in ("seed", "setting", "dataset", "config_dir")}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["method.lrr=0.1"], ["'method.lrr'", "'method.lr'"]),
        (["setting.dleta=1"], ["'setting.dleta'", "'setting.delta'"]),
        (["dataset.sevrity=3"], ["'dataset.sevrity'", "'dataset.severity'"]),
        (["sed=1"], ["'sed'", "'seed'"]),
        (["methd=tent"], ["'methd'", "'method'"]),
        (["method.lr.x=1"], ["'method.lr.x'"]),
        (["method=tnet"], ["'tnet'", "'tent'"]),
        (["setting=cdcc"], ["'cdcc'", "'cdc'", "ptta"]),
        (["trainer=gpuu"], ["trainer", "'gpuu'", "auto"]),
        (["tuned=on"], ["tuned", "'on'", "off"]),
        (["method.lr=abc"], ["method.lr", "'abc'"]),
        (["method.lr="], ["method.lr"]),
        (["method.lr=null"], ["method.lr"]),
        (["method.steps_new=1.5"], ["method.steps_new", "1.5"]),
        (["dataset.severity=high"], ["dataset.severity", "'high'"]),
        (["method.coreset_stats=foo"], ["method.coreset_stats", "raw, prompted", "'foo'"]),
        (["method=tent", "method.optimizer=adamw"], ["method.optimizer", "sgd, adam", "'adamw'"]),
        (["seed=x"], ["seed", "'x'"]),
        (["seed=-1"], ["seed", "-1"]),
        (["seed=1.5"], ["seed", "1.5"]),
        (["seed=true"], ["seed", "True"]),
        (["seed=null"], ["seed", "None"]),
        ([f"seed={2**63}"], ["seed", str(2**63)]),
        (["forgetting=-1"], ["forgetting", "-1"]),
        (["checkpoint_every=0"], ["checkpoint_every", "0"]),
        (["checkpoint_seconds=-1"], ["checkpoint_seconds", "-1"]),
        (["reset=always"], ["reset", "never, domain, first_domain", "'always'"]),
        (["resume=always"], ["resume", "auto, never", "'always'"]),
        (["setting.rounds=0"], ["setting.rounds", "0"]),
        (["trainer.precision=bf16"], ["trainer.precision", "16-mixed, bf16-mixed, 16-true, bf16-true, 64-true"]),
        (["model.compile=reduce_overhead"], ["off, default, reduce-overhead, max-autotune", "mean 'reduce-overhead'"]),
        (["model.compile=true"], ["model.compile must be one of off, default", "True"]),
        (["model=segformer", "model.compile=default"], ["'model.compile'"]),
        (["trainer.matmul=tf32"], ["trainer.matmul", "highest, high, medium"]),
        (["threads=x"], ["threads", "'x'"]),
        (["threads=0"], ["threads", "0"]),
        (["num_workers=-1"], ["num_workers", "-1"]),
        (["num_workers=two"], ["num_workers", "'two'"]),
        (["dataset.domains=[]"], ["dataset.domains"]),
        (["dataset.domains=[fogg]"], ["'fogg'", "'fog'"]),
        (["dataset.domains=[fog/6]"], ["'fog/6'", "1 to 5"]),
        (["dataset.domains=[clean/3]"], ["'clean/3'"]),
        (["dataset.severity=6"], ["dataset.severity", "6"]),
        (["dataset.num_images=0"], ["dataset.num_images", "0"]),
        (["dataset.split=train"], ["dataset.split", "'train'"]),
        (["dataset=shapes_c", "dataset.resize=256"], ["'dataset.resize'"]),
        (["setting.delta=-1"], ["delta", "-1"]),
        (["setting.delta=wide"], ["setting.delta", "a number", "'wide'"]),
        (["setting.slots=1.5"], ["setting.slots", "an integer", "1.5"]),
        (["setting.batch_size=0"], ["batch_size", "0"]),
        (["setting.order=foo"], ["'foo'", "standard"]),
        (["model=local"], ["model.checkpoint", "model.config"]),
        (["model=timm"], ["model.name"]),
        (["model=timm", "model.name=vit_tiny"], ["'vit_tiny'", "vit_tiny"]),
        (["method=no.such.Class"], ["'no.such.Class'", "PYTHONPATH"]),
        (["method._target_=json.dumps"], ["'json.dumps'", "class"]),
        (["setting"], ["'setting'", "key=value"]),
        (["method.lr=[1"], ["'method.lr=[1'"]),
        (["=3"], ["=3"]),
        (["method.lr=0.1,0.2"], ["'method.lr=0.1,0.2'", "several"]),
        (["+x=1"], ["'+x=1'"]),
        (["++seed=1"], ["'++seed=1'"]),
        (["~seed=0"], ["'~seed=0'"]),
        (["~seed"], ["'~seed'"]),
    ],
    ids=lambda value: " ".join(value) if all("=" in v for v in value) else None,
)
def test_a_wrong_word_is_one_sentence_that_names_it(words, parts):
    message = sentence(*words)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("dataset.on_bad_image=ignore", ["dataset.on_bad_image", "fail, skip", "'ignore'"]),
        ("dataset.interpolation=nearest", ["dataset.interpolation", "bilinear, bicubic", "'nearest'"]),
        ("dataset.image_size=large", ["dataset.image_size", "'large'"]),
    ],
)
def test_a_wrong_word_about_image_files_names_the_right_ones(word, parts):
    with pytest.raises(ConfigError) as caught:
        compose_run(["dataset=imagenet_c", word])
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_data_set_without_a_path_asks_for_it():
    with pytest.raises(ConfigError, match=r"dataset\.images has no value"):
        require(compose_run(["dataset=corrupted"]).config)


def test_a_missing_path_of_a_data_set_is_named():
    composed = compose_run(["dataset=corrupted", "dataset.images=/nowhere/images.npz"])
    with pytest.raises(FileNotFoundError, match=r"^dataset\.images=/nowhere/images\.npz does not exist$"):
        Run(composed)


def test_a_class_of_ones_own_takes_its_own_keywords(own_module):
    for word in ("method._target_=mypkg.Scaled", "method=mypkg.Scaled"):
        composed = compose_run([word, "method.gain=2.5"])
        method = instantiate(composed.config.method)(torch.nn.Identity(), seed=3)
        assert (composed.choices["method"], type(method).__name__, method.gain) == ("Scaled", "Scaled", 2.5)


def test_a_wrong_keyword_of_ones_own_class_is_answered_with_the_right_one(own_module):
    with pytest.raises(ConfigError, match=r"'method\.gian'; did you mean 'method\.gain'"):
        compose_run(["method._target_=mypkg.Scaled", "method.gian=2"])


class TestTunedValues:
    @pytest.fixture(autouse=True)
    def tuned(self, configs):
        (configs / "tuned" / "shapes_c" / "tent.yaml").write_text("# @package _global_\nmethod:\n  lr: 0.125\n")

    def test_they_are_taken_for_their_pair_of_data_set_and_method(self):
        assert compose_run(["method=tent"]).config.method.lr == 0.125

    def test_they_are_not_taken_for_another_pair(self):
        published = compose_run(["method=tent", "dataset=shapes_c_validation"]).config.method.lr
        assert published == 1e-4
        assert compose_run(["method=dpcore"]).config.method.lr == 0.01

    def test_the_users_word_wins(self):
        assert compose_run(["method.lr=0.5", "method=tent"]).config.method.lr == 0.5

    def test_they_can_be_switched_off(self):
        assert compose_run(["method=tent", "tuned=off"]).config.method.lr == 1e-4

    def test_they_are_part_of_a_runs_identity(self, tmp_path):
        words = ["method=tent", "dataset.num_images=4", "dataset.domains=[clean]", f"output={tmp_path}"]
        folders = {
            Run(compose_run([*words, *more])).folder for more in ([], ["tuned=off"], ["tuned=off", "logger=off"])
        }
        assert len(folders) == 2


def test_what_does_not_change_numbers_does_not_change_the_folder(tmp_path):
    words = ["method=source", "dataset.num_images=4", "dataset.domains=[clean]"]
    same = [[f"output={tmp_path}"], ["logger=off"], ["num_workers=2"], ["threads=1"], ["cache_dir=/elsewhere"]]
    names = [Run(compose_run([*words, *more])).folder.name for more in same]
    assert len(set(names)) == 1
    others = [["seed=1"], ["dataset.severity=3"], ["setting.delta=0.5"], ["trainer.precision=64-true"]]
    assert len({*names, *(Run(compose_run([*words, *more])).folder.name for more in others)}) == 5
