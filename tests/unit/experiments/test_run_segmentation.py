"""Runs on data with a class per pixel: their defaults, what is rejected, and a run with the real network."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torchmetrics.classification import MulticlassJaccardIndex
from typer.testing import CliRunner

from tests.helpers.segmenting import PixelDomains, Pixels, needs_mmseg
from tta_bench.cli.app import app
from tta_bench.config.compose import compose_run, compose_stream
from tta_bench.config.registry import DATASETS, SEGMENTATION
from tta_bench.config.words import ConfigError
from tta_bench.experiments.bench import NOT_IN_ALL, bench, make_plan
from tta_bench.experiments.run import Run, build_method
from tta_bench.methods import METHODS
from tta_bench.prepare.pack import pack
from tta_bench.training.segmenter import train_on_source_domain

QUIET = Console(quiet=True)


class TestWords:
    def test_a_data_set_stands_for_a_model_that_scores_pixels_and_single_images(self):
        for name in SEGMENTATION:
            composed = compose_run([f"dataset={name}", "setting=csc"])
            assert composed.config.model._target_.endswith("load_segformer")
            assert composed.config.setting.batch_size == 1
            assert compose_stream([f"dataset={name}"]).config.setting.batch_size == 1
            assert tuple(map(str, composed.words)) == (f"dataset={name}", "setting=csc")
        assert compose_run(["dataset=streets_c"]).choices["model"] == "streets_segformer"
        assert compose_run(["dataset=shapes_c"]).config.setting.batch_size == 64

    def test_what_the_words_say_goes_first(self):
        words = ["model=segformer", "setting.batch_size=4", "dataset=streets_c"]
        composed = compose_run(words)
        assert (composed.choices["model"], composed.config.setting.batch_size) == ("segformer", 4)

    def test_all_methods_are_those_that_segment(self):
        segment = {name for name, cls in METHODS.items() if cls.segments} - set(NOT_IN_ALL)
        assert {"source", "tent"} <= segment < set(METHODS)
        assert set(make_plan(["dataset=streets_c", "methods=all"]).methods) == segment
        assert set(make_plan(["methods=all"]).methods) > segment

    def test_every_data_set_is_registered(self):
        assert set(SEGMENTATION) == {"streets_c", "acdc", "cityscapes", "segmentation_folder"}
        assert set(SEGMENTATION) <= set(DATASETS)


class TestRefusals:
    @pytest.mark.parametrize("dataset", SEGMENTATION)
    def test_a_missing_package_comes_before_anything_else(self, dataset, monkeypatch):
        monkeypatch.setitem(sys.modules, "mmseg", None)  # as if it were not installed
        with pytest.raises(ValueError, match=r"^SegFormer needs mmsegmentation: pip install 'tta_bench\[seg\]'$"):
            Run(compose_run([f"dataset={dataset}"]))

    def test_a_model_of_images_on_pixels(self):
        with pytest.raises(
            ConfigError, match=r"^streets_c has a class per pixel, and model=shapes_vit scores every image"
        ):
            Run(compose_run(["dataset=streets_c", "model=shapes_vit", "dataset.num_images=1"]))

    def test_a_model_of_pixels_on_images(self, monkeypatch):
        replace(monkeypatch, {"model": Pixels})
        with pytest.raises(
            ConfigError, match=r"^shapes_c has a class per image, and model=shapes_vit scores every pixel"
        ):
            Run(compose_run(["method=source", "dataset.num_images=1"]))

    def test_a_model_of_other_classes(self, monkeypatch):
        network = Pixels()
        network.num_classes = 4
        replace(monkeypatch, {"model": lambda: network, "dataset": PixelDomains})
        with pytest.raises(ConfigError, match=r"^pixels has 3 classes \(road, sky, car\), but .* has 4: choose"):
            Run(compose_run(["method=source"]))

    def test_a_method_that_takes_one_score_per_image(self):
        with pytest.raises(ConfigError, match=r"^LAME cannot adapt a segmentation model: choose from source, tent"):
            build_method(compose_run(["method=lame"]).config.method, Pixels(), 0)

    @pytest.mark.parametrize("setting", ["ptta", "gradual"])
    def test_a_stream_that_needs_more(self, setting):
        done = CliRunner().invoke(app, ["stream", "show", "dataset=streets_c", f"setting={setting}"])
        assert done.exit_code == 2
        (line,) = done.output.strip().splitlines()
        assert line.startswith(f"error: setting={setting} needs ")

    def test_packing_would_lose_the_label_maps(self, tmp_path):
        with pytest.raises(ValueError, match=r"^pixels has a class per pixel, but data pack stores one per image"):
            pack(PixelDomains(), tmp_path / "packed", QUIET)
        assert list(tmp_path.iterdir()) == []


def replace(monkeypatch, instead):
    """Give ``build`` some nodes' objects; the others are made as always."""
    from tta_bench.config.compose import build

    def make(node):
        kind = "model" if "load_model" in node._target_ else "dataset" if "datasets" in node._target_ else "other"
        return instead[kind]() if kind in instead else build(node)

    for module in ("run", "opened", "source_model"):
        monkeypatch.setattr(f"tta_bench.experiments.{module}.build", make)


@pytest.fixture
def pixel_runs(monkeypatch):
    replace(monkeypatch, {"model": Pixels, "dataset": PixelDomains})


def test_a_bench_compares_by_iou_and_remembers_that_of_source(pixel_runs, tmp_path):
    words = ["methods=[source,tent]", "setting=csc", "setting.batch_size=2", "setting.rounds=2", "logger=off"]
    results = bench([*words, "trainer=cpu", f"output={tmp_path}", f"cache_dir={tmp_path}/cache"], QUIET)
    assert [r["status"] for r in results] == ["done", "done"]
    source, tent = (json.loads((tmp_path / r["folder"] / "result.json").read_text()) for r in results)
    assert tent["source_mean_iou"] == source["mean_iou"] == source["source_mean_iou"]
    assert len(tent["iou_by_round"]) == 2
    assert set(tent["class_iou"]) == {"road", "sky", "car"}
    assert tent["mean_iou"] == pytest.approx(np.mean(list(tent["domain_iou"].values())))
    again = bench([*words, "trainer=cpu", f"output={tmp_path}", f"cache_dir={tmp_path}/cache"], QUIET)
    assert [r["mean_iou"] for r in again] == [source["mean_iou"], tent["mean_iou"]]


def folder_words(tmp_path, count=11):
    """A folder data set of two classes: bright columns on dark ground, by day and darker by dusk."""
    rng = np.random.default_rng(0)
    for domain, light in (("day", 1.0), ("dusk", 0.8)):
        for part in ("images", "labels"):
            (tmp_path / part / domain).mkdir(parents=True)
        for i in range(count):
            labels = np.zeros((32, 64), dtype=np.uint8)
            start = rng.integers(4, 40)
            labels[:, start : start + 20] = 1
            image = light * (np.where(labels, 200, 60)[..., None] + rng.normal(0, 10, (32, 64, 3)))
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(tmp_path / "images" / domain / f"{i:02}.png")
            Image.fromarray(labels).save(tmp_path / "labels" / domain / f"{i:02}.png")
    (tmp_path / "classes.txt").write_text("dark\nbright\n")
    return [
        "dataset=segmentation_folder", f"dataset.images={tmp_path}/images", f"dataset.labels={tmp_path}/labels",
        f"dataset.classes={tmp_path}/classes.txt", "dataset.source_domain=day",
    ]  # fmt: skip


@needs_mmseg
class TestTheRealNetwork:
    def test_of_streets_runs_on_the_command_line(self, tmp_path):
        words = ["dataset=streets_c", "dataset.num_images=2", "dataset.domains=[day,night]", "setting=csc"]
        more = ["methods=[source,tent]", "logger=off", "trainer=cpu", f"output={tmp_path}"]
        done = CliRunner().invoke(app, ["bench", *words, *more])
        assert done.exit_code == 0, done.output
        assert "mean IoU in %, higher is better" in done.output
        (path,) = tmp_path.glob("streets_c/csc/source/*/result.json")
        result, run = json.loads(path.read_text()), Run(compose_run([*words, "method=source"]))
        iou = MulticlassJaccardIndex(8, ignore_index=255)
        for i in range(2):
            image = torch.from_numpy(run.domains.load("night", i)).permute(2, 0, 1)[None] / 255
            with torch.no_grad():
                predicted = run.backbone(image).argmax(1)[0]
            iou.update(predicted, torch.from_numpy(run.domains.label_map("night", i)).long())
        assert result["domain_iou"]["night"] == pytest.approx(100 * iou.compute().item(), abs=0.01)
        assert list(result["class_iou"]) == list(run.domains.classes)
        assert result["domain_iou"]["day"] > result["domain_iou"]["night"]
        told = {name.removeprefix("onedl-") for name in result["versions"]}
        assert {"mmsegmentation", "mmcv", "mmengine"} <= told

    def test_learns_from_the_source_domain_of_a_folder_and_adapts_to_the_others(self, tmp_path):
        words = folder_words(tmp_path)
        options = ["--output", str(tmp_path / "w.safetensors"), "--epochs", "2", "--batch-size", "5"]
        done = CliRunner().invoke(app, ["source", "train-segmenter", *words, *options])
        assert done.exit_code == 0, done.output
        card = (tmp_path / "w.yaml").read_text()
        assert "classes:\n- dark\n- bright\n" in card
        assert "on 2 images of the source domain" in card  # every tenth of eleven
        run = ["bench", *words, f"model.config={tmp_path}/w.yaml", f"model.checkpoint={tmp_path}/w.safetensors"]
        more = ["methods=[source,tent]", "setting=csc", "logger=off", "trainer=cpu", f"output={tmp_path}/runs"]
        done = CliRunner().invoke(app, [*run, *more])
        assert done.exit_code == 0, done.output
        (path,) = tmp_path.glob("runs/segmentation_folder/csc/tent/*/result.json")
        result = json.loads(path.read_text())
        assert (result["domains"], list(result["class_iou"])) == (["dusk"], ["dark", "bright"])

    @pytest.mark.parametrize(
        ("words", "settings", "message"),
        [
            (["dataset=shapes_c"], {}, "shapes_c has a class per image"),
            (["dataset=streets_c"], {"batch_size": 2}, "--batch-size is for your own data"),
            (["folder"], {"num_images": 2}, "--num-images is only for streets_c"),
            (["folder"], {"batch_size": 64}, "training images are too few for a batch of 64: lower --batch-size"),
            (
                ["folder", "dataset.source_domain=null"],
                {},
                r"no source images: set dataset\.source_domain$",
            ),
        ],
    )
    def test_training_says_what_is_wrong(self, tmp_path, words, settings, message):
        if words[0] == "folder":
            words = [*folder_words(tmp_path, count=2), *words[1:]]
        with pytest.raises(ValueError, match=message):
            train_on_source_domain(words, tmp_path / "w.safetensors", seed=0, epochs=1, console=QUIET, **settings)
