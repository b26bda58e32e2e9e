"""The Python API: the same names, values and scores as the command line has."""

from __future__ import annotations

import ast
import inspect
import json
import math
import subprocess
import sys

import lightning.pytorch as L
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import tta_bench as tta
from tta_bench import testing
from tta_bench.cli.app import app
from tta_bench.config.compose import compose_run, plain
from tta_bench.config.words import ConfigError, read_word, word_for
from tta_bench.types import SourceNeed

RNG = np.random.default_rng(0)
SIZES = {"paper": 300, "timm": 96, "native": 96}  # only the paper's profile takes images larger than its network
PROFILES = {  # how a command line and load_model name them
    "paper": {"preprocess": "paper"},
    "timm": {"preprocess": "timm"},
    "native": {"preprocess": "native"},
    "mixed": {"preprocess": "paper", "source_preprocess": "timm"},
}
METHODS = {"tent": {"lr": 0.01}, "dpcore": {"num_source": 8, "steps_new": 2}}


def write_vit(folder):
    """A tiny ViT of 224 pixels with random weights, those of its norms too."""
    kwargs = {"img_size": 224, "patch_size": 56, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
    network = timm.create_model("vit_tiny_patch16_224", **kwargs)
    generator = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * (0.5 if weight.ndim == 1 else 0.3))
    save_file(network.state_dict(), folder / "w.safetensors")
    card = {"architecture": "vit_tiny_patch16_224", "kwargs": kwargs, "mean": [0.5, 0.4, 0.3], "std": [0.25, 0.2, 0.1]}
    (folder / "w.yaml").write_text(json.dumps(card))
    return {"checkpoint": str(folder / "w.safetensors"), "config": str(folder / "w.yaml")}


def write_images(file, size):
    """Sixteen images with eight of the source; colours by blocks, so that a resize moves scores and keeps structure."""
    blocks = RNG.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    pixels = blocks.repeat(-(-size // 8), axis=1).repeat(-(-size // 8), axis=2)[:, :size, :size]
    labels = np.arange(24) % 4
    np.savez(
        file, test_images=pixels[:16], test_labels=labels[:16], source_images=pixels[16:], source_labels=labels[16:]
    )
    return str(file)


class Recorded(L.Callback):
    """Keeps the scores of a stream."""

    def __init__(self):
        self.scores = []

    def on_test_batch_end(self, trainer, pl_module, outputs, *_):
        self.scores.append(outputs.scores.clone())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("profile", PROFILES)
def test_command_line_trainer_and_plain_loop_give_the_same_scores(profile, name, tmp_path, monkeypatch):
    images = write_images(tmp_path / "x.npz", SIZES[PROFILES[profile]["preprocess"]] if profile != "mixed" else 224)
    model = {**write_vit(tmp_path), **PROFILES[profile]}
    stream = {"domains": ["gaussian_noise", "clean"], "severity": 3}

    def data():
        return tta.data.CorruptedImages("cdc", batch_size=4, seed=3, images=images, **stream)

    def method():
        return tta.create_method(name, tta.load_model(**model), seed=3, **METHODS[name])

    by_trainer = Recorded()
    trainer = L.Trainer(
        inference_mode=False, accelerator="cpu", logger=False, callbacks=[by_trainer], enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.test(method(), datamodule=data(), verbose=False)

    looped, plain_data = method(), data()
    if looped.source_need is not SourceNeed.NOTHING:
        looped.fit_source(plain_data.source_dataloader(looped.source_need))
    by_loop = [looped(batch.images) for batch in plain_data.test_dataloader()]

    by_command = Recorded()
    monkeypatch.setattr("tta_bench.experiments.run.StreamProgress", lambda *_, **__: by_command)
    words = [
        "setting=cdc", "setting.batch_size=4", "seed=3", "trainer=cpu", "logger=off", f"method={name}", "model=local",
        "dataset=corrupted", f"dataset.images={images}", "dataset.domains=[gaussian_noise,clean]", "dataset.severity=3",
        *(f"model.{key}={value}" for key, value in model.items()),
        *(f"method.{key}={value}" for key, value in METHODS[name].items()),
        f"output={tmp_path}/runs", f"cache_dir={tmp_path}/cache",
    ]  # fmt: skip
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.output

    assert len(by_loop) == 8
    assert torch.equal(torch.cat(by_command.scores), torch.cat(by_trainer.scores))
    assert torch.equal(torch.cat(by_command.scores), torch.cat(by_loop))
    assert torch.cat(by_loop).std() > 1e-3


@pytest.mark.parametrize("profile", ["timm", "native"])
def test_images_larger_than_the_network_are_refused_on_all_three_ways(profile, tmp_path):
    images, model = write_images(tmp_path / "x.npz", 300), {**write_vit(tmp_path), "preprocess": profile}
    told = "images of 300x300 pixels do not fit a model of 224x224: set dataset.image_size=224"
    data = tta.data.CorruptedImages("csc", images=images, domains=["clean"])
    method = tta.create_method("tent", tta.load_model(**model))
    with pytest.raises(ValueError, match=told):
        method(next(iter(data.test_dataloader())).images)
    with pytest.raises(ValueError, match=told):
        testing.run_stream(method, data)
    with pytest.raises(RuntimeError, match=told):
        tta.run(
            "trainer=cpu", "logger=off", quiet=True, method="tent", dataset="corrupted", model="local", setting="csc",
            output=str(tmp_path / "runs"),
            **{"dataset.images": images, "dataset.domains": ["clean"]},
            **{f"model.{key}": value for key, value in model.items()},
        )  # fmt: skip


SMALL = {"dataset.num_images": 8, "dataset.domains": ["fog", "snow"], "setting.batch_size": 4, "dataset": "shapes_c"}


class TestRunningFromPython:
    def test_a_bench_leaves_the_run_folders_of_the_command_line(self, tmp_path):
        words = ["dataset.num_images=8", "dataset.domains=[fog,snow]", "setting.batch_size=4", "trainer=cpu",
                 "logger=off", "setting=csc", "tent.lr=0.01"]  # fmt: skip
        command = ["bench", *words, "methods=[source,tent]", "seeds=[1]", f"output={tmp_path}/command"]
        assert CliRunner().invoke(app, command).exit_code == 0
        runs = tta.bench(
            "tent.lr=0.01", quiet=True, methods=["source", "tent"], seeds=[1], setting="csc", trainer="cpu",
            logger="off", output=tmp_path / "python", **SMALL,
        )  # fmt: skip
        assert [run.method for run in runs] == ["source", "tent"]
        for run in runs:
            twin = tmp_path / "command" / run.folder.relative_to(tmp_path / "python")
            theirs = json.loads((twin / "result.json").read_text())
            assert (run.domain_error, run.mean_error) == (theirs["domain_error"], theirs["mean_error"])
            assert (run.dataset, run.setting, run.seed, run.done, run.error) == ("shapes_c", "csc", 1, True, None)
        assert runs[0].domain_error.keys() == {"fog", "snow"}

    def test_a_run_that_fails_raises_and_a_bench_tells(self, tmp_path):
        settings = {"trainer": "cpu", "logger": "off", "setting": "csc", "output": tmp_path, "quiet": True, **SMALL}
        with pytest.raises(RuntimeError, match=r"^dpcore seed 0 failed: .*lower num_source; its files "):
            tta.run(method="dpcore", **settings, **{"dataset.num_source_images": 4})
        source, failed = tta.bench(methods=["source", "dpcore"], **settings, **{"dataset.num_source_images": 4})
        assert (source.done, failed.done, failed.mean_error, failed.domain_error) == (True, False, None, {})
        assert "lower num_source" in failed.error

    def test_a_wrong_keyword_is_refused_before_anything_runs(self, tmp_path):
        with pytest.raises(ConfigError, match="did you mean 'method'"):
            tta.run(methd="tent", output=tmp_path)

    @pytest.mark.parametrize("value", [
        None, True, 3, 1e-7, math.inf, "plain", "null", "12", "a b", "it's", "C:\\x\\", "\\'", "~/data,1",
        "[x]", ["a", "b c"],
    ])  # fmt: skip
    def test_a_value_of_python_arrives_as_it_is(self, value):
        read = read_word(str(word_for("dataset.images", value))).value
        assert getattr(read, "value", read) == value


def hyper_parameters(*words):
    """What the command line gives a method."""
    return {key: x for key, x in plain(compose_run(words).config.method).items() if not key.startswith("_")}


class TestCreatingAMethod:
    def test_takes_variants_and_their_values(self):
        method = tta.create_method("dpcore_official", testing.toy_backbone(), steps_new=2, seed=5)
        expected = hyper_parameters("method=dpcore_official", "method.steps_new=2")
        assert {key: method.hparams[key] for key in expected} == expected
        assert (method.hparams.lr, method.rng.initial_seed()) == (0.1, 5)

    def test_takes_tuned_values_where_nothing_else_is_said(self):
        published = tta.create_method("cotta", testing.toy_backbone())
        tuned = tta.create_method("cotta", testing.toy_backbone(), tuned="cifar10_c", threshold=0.5)
        values = tta.tuned_values("cifar10_c", "cotta")
        assert "threshold" in values
        for key, value in {**values, "threshold": 0.5}.items():
            assert tuned.hparams[key] == value
        assert published.hparams.loss != tuned.hparams.loss
        expected = hyper_parameters("method=cotta", "dataset=cifar10_c", "method.threshold=0.5")
        assert {key: tuned.hparams[key] for key in expected} == expected

    def test_takes_published_values_unless_asked(self):
        published = inspect.signature(tta.methods.ViDA).parameters["warmup_steps"].default
        assert tta.tuned_values("shapes_c", "vida")["warmup_steps"] != published
        assert tta.create_method("vida", testing.toy_backbone()).hparams.warmup_steps == published

    def test_refuses_what_was_never_tuned(self):
        with pytest.raises(ConfigError, match=r"^nothing was tuned for tent on shapes_c; there are values for: dept"):
            tta.create_method("tent", testing.toy_backbone(), tuned="shapes_c")
        with pytest.raises(ConfigError, match=r"there are values on: acdc, cifar100_c"):
            tta.tuned_values("shapes", "tent")

    @pytest.mark.parametrize(("name", "settings", "told"), [
        ("tnet", {}, "did you mean 'tent'"), ("tent", {"l": 0.1}, "there is no key 'method.l'"),
        ("tent", {"lr": "fast"}, "method.lr"),
    ])  # fmt: skip
    def test_refuses_wrong_names_and_values(self, name, settings, told):
        with pytest.raises(ValueError, match=told):
            tta.create_method(name, testing.toy_backbone(), **settings)


def test_lists_name_what_the_command_line_takes():
    assert {"dpcore", "dpcore_official", *tta.methods.METHODS} <= set(tta.list_methods())
    assert {"cdc", "repeating", "cdc_official"} <= set(tta.list_settings())
    assert {"shapes_c", "streets_c", "shapes_c_validation"} <= set(tta.list_datasets())
    assert {"shapes_vit", "vit_b16_raw"} <= set(tta.list_models())


@pytest.mark.parametrize("setting", tta.list_settings())
def test_every_setting_that_is_listed_makes_a_stream(setting):
    assert len(tta.make_stream(setting, labels={"fog": [0, 1, 0, 1], "snow": [1, 0, 1, 0]}))


class TestRecords:
    def test_of_half_a_stream_tell_no_error(self):
        half = {"mean_error": 3.0, "domain_error": {"fog": 3.0}, "mean_iou": 2.0, "domain_iou": {"fog": 2.0}}
        done, failed = (tta.RunRecord({"status": status, **half}) for status in ("done", "failed"))
        assert (done.mean_error, done.domain_error, done.mean_iou, done.domain_iou) == tuple(half.values())
        assert (failed.mean_error, failed.domain_error, failed.mean_iou, failed.domain_iou) == (None, {}, None, {})

    def test_without_pandas_one_sentence_says_what_to_do(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match=r"^to_pandas\(\) requires the package pandas: pip install pandas$"):
            tta.Runs().to_pandas()

    def test_with_pandas_a_row_per_run_and_a_column_per_key(self):
        pytest.importorskip("pandas")
        records = [tta.RunRecord({"method": m, "domain_error": {"fog": e}}) for m, e in (("a", 1.0), ("b", 2.0))]
        frame = tta.Runs(records).to_pandas()
        assert list(frame["method"]) == ["a", "b"]
        assert list(frame["domain_error.fog"]) == [1.0, 2.0]


class TestWhatAnEditorSees:
    @pytest.mark.parametrize("module", [tta, tta.data, tta.methods, tta.callbacks])
    def test_every_public_name_is_there(self, module):
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:
            assert getattr(module, name) is not None

    def test_those_that_are_imported_late_are_told_to_type_checkers(self):
        (block,) = [node for node in ast.parse(inspect.getsource(tta)).body if isinstance(node, ast.If)]
        assert sorted(alias.name for line in block.body for alias in line.names) == sorted(tta.__all__)

    @pytest.mark.slow
    def test_a_type_checker_knows_them(self, tmp_path):
        pytest.importorskip("mypy")
        program = tmp_path / "program.py"
        program.write_text(
            "import tta_bench as tta\n"
            + "".join(f"reveal_type(tta.{name})\n" for name in tta.__all__)
            + "".join(f"reveal_type(tta.data.{name})\n" for name in tta.data.__all__)
            + "reveal_type(tta.bench('setting=csc')[0].mean_error)\n"
        )
        command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(program)]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        revealed = [line for line in told.splitlines() if "Revealed type" in line]
        assert len(revealed) == len(tta.__all__) + len(tta.data.__all__) + 1, told
        assert not [line for line in revealed if '"Any"' in line], told
        assert "float | None" in revealed[-1] or "Union[builtins.float, None]" in revealed[-1]
