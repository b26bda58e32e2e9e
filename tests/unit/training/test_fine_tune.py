"""Fine-tuning a source model: what it learns and writes, and that interruptions change nothing."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.helpers.trainings import cut_short, different_weights
from tta_bench.cli.app import app
from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.models.loading.load_model import load_model
from tta_bench.training import fine_tune as module
from tta_bench.training.classifier import ClassifierTraining
from tta_bench.training.fine_tune import FineTuneRecipe, fine_tune

pytestmark = pytest.mark.filterwarnings("ignore:.*log_every_n_steps:UserWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """On the CPU, without a progress bar."""
    trainer = L.Trainer
    monkeypatch.setattr(L, "Trainer", lambda **kw: trainer(**kw | {"accelerator": "cpu", "enable_progress_bar": False}))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Forty shapes of 32 pixels, of the three classes that are asked for."""
    wanted = [i for i in range(200) if label(i) in (0, 1, 2)][:40]
    path = tmp_path_factory.mktemp("data") / "x.npz"
    np.savez(path, train_images=[render("train", i, 32) for i in wanted], train_labels=[label(i) for i in wanted])
    return path


def recipe(data, **changed):
    settings = {"split": "train", "model": "shapes_vit", "seed": 0, "epochs": 2, "lr": 1e-3, "batch_size": 12}
    rest = dict.fromkeys(("labels", "classes", "image_size", "checkpoint", "checkpoint_key", "config"))
    return FineTuneRecipe(images=str(data), **{**rest, **settings, **changed})


def tuned(data, output, **changed):
    console = Console(file=io.StringIO(), width=300)
    fine_tune(recipe(data, **changed), output, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("finished") / "w.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        trainer = L.Trainer
        patch.setattr(L, "Trainer", lambda **kw: trainer(**kw | {"accelerator": "cpu", "enable_progress_bar": False}))
        output.with_suffix(".txt").write_text(tuned(data, output))
    return output


def test_the_result_is_a_model_for_the_classes_of_the_data(data, finished):
    backbone = load_model(checkpoint=finished, config=finished.with_suffix(".yaml"))
    assert backbone.num_classes == 3
    assert backbone.preprocess.mean == (0.5, 0.5, 0.5)
    with np.load(data) as file:
        images, labels = torch.from_numpy(file["train_images"]).permute(0, 3, 1, 2) / 255, file["train_labels"]
    large = torch.nn.functional.interpolate(images, (64, 64), mode="bilinear")
    assert (backbone(large).argmax(dim=1).numpy() == labels).mean() > 0.6  # chance is a third
    assert [path.name for path in sorted(finished.parent.iterdir())] == ["w.safetensors", "w.txt", "w.yaml"]


def test_accuracy_is_that_of_the_written_weights_on_the_images_held_out(data, finished):
    backbone = load_model(checkpoint=finished, config=finished.with_suffix(".yaml"))
    rows = np.random.default_rng(0).permutation(40)[::10]
    with np.load(data) as file:
        images = torch.from_numpy(file["train_images"][rows]).permute(0, 3, 1, 2) / 255
        labels = file["train_labels"][rows]
    large = torch.nn.functional.interpolate(images, (64, 64), mode="bilinear")
    accuracy = 100 * (backbone(large).argmax(dim=1).numpy() == labels).mean()
    assert f"# Accuracy on the 4 held-out images: {accuracy:.2f} %" in finished.with_suffix(".yaml").read_text()
    printed = finished.with_suffix(".txt").read_text().splitlines()
    assert [line.split(":")[0] for line in printed[:2]] == ["epoch 1/2", "epoch 2/2"]
    assert printed[2].startswith(f"accuracy {accuracy:.2f} % on held-out images; model=local")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_training_that_was_cut_goes_on_and_ends_with_the_same_weights(data, finished, tmp_path, error):
    output = tmp_path / "w.safetensors"
    cut_short(lambda: tuned(data, output), ClassifierTraining, error)
    assert sorted(path.name for path in (tmp_path / "w.training").iterdir()) == ["last.ckpt", "recipe.json"]
    assert not output.exists()
    assert f"resuming from {tmp_path}/w.training/last.ckpt\nepoch 2/2" in tuned(data, output)
    assert different_weights(output, finished) == []
    assert not (tmp_path / "w.training").exists()


def test_loader_processes_change_nothing(data, finished, tmp_path):
    fine_tune(recipe(data), tmp_path / "w.safetensors", Console(file=io.StringIO()), num_workers=1)
    assert (tmp_path / "w.safetensors").read_bytes() == finished.read_bytes()


def test_a_folder_of_another_training_is_refused(data, tmp_path):
    (tmp_path / "w.training").mkdir()
    (tmp_path / "w.training/recipe.json").write_text(json.dumps(asdict(recipe(data, lr=0.5))))
    with pytest.raises(ValueError, match=r"w\.training belongs to a training with lr 0\.5 instead of 0\.001"):
        tuned(data, tmp_path / "w.safetensors")


def test_a_finished_training_is_not_overwritten(data, finished):
    before = finished.read_bytes()
    with pytest.raises(ValueError, match=r"w\.safetensors already exists: remove it"):
        tuned(data, finished)
    assert finished.read_bytes() == before


def test_a_network_of_the_same_classes_keeps_its_head(tmp_path):
    pixels = [render("train", i, 64) for i in range(20)]
    np.savez(tmp_path / "x.npz", images=pixels, labels=[label(i) for i in range(20)])
    tuned(tmp_path / "x.npz", tmp_path / "w.safetensors", lr=1e-12, epochs=1)
    before = load_model("shapes_vit").vit.state_dict()
    for name, value in load_file(tmp_path / "w.safetensors").items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)


def test_a_listed_class_without_images_has_a_score_too_and_other_files_are_counted(tmp_path):
    for i in range(12):
        file = tmp_path / "images" / str(i % 2) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render("train", i, 32)).save(file)
    (tmp_path / "images/0/x.heic").write_text("x")
    (tmp_path / "classes.txt").write_text("0\n1\n2\n")
    settings = {"classes": str(tmp_path / "classes.txt"), "image_size": 32, "epochs": 1, "batch_size": 4}
    said = tuned(tmp_path / "images", tmp_path / "w.safetensors", **settings)
    assert "note: files and folders that are not read: 1 x .heic\n" in said
    assert load_file(tmp_path / "w.safetensors")["head.weight"].shape[0] == 3


def test_images_of_folders_are_cut_to_the_size_of_the_network(tmp_path):
    for i in range(12):
        file = tmp_path / "images" / str(label(i)) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render("train", i, 96)).resize((120, 96 + i)).save(file)
    assert module.open_training_images(recipe(tmp_path / "images"), 64)[0].shape == (64, 64, 3)
    assert module.open_training_images(recipe(tmp_path / "images", image_size=48), 64)[0].shape == (48, 48, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 0.0}, "--lr must be above 0, got 0.0"),
        ({"epochs": 0}, "--epochs must be above 0, got 0"),
        ({"model": "vit_tiny_patch16_224"}, "does not say which weights"),
        ({"model": None}, r"set model\.name"),
        ({"images": "/nowhere"}, "--images=/nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_one_sentence(data, tmp_path, changed, message):
    settings = {"images": data, **changed}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        tuned(settings.pop("images"), tmp_path / "w.safetensors", **settings)
    assert list(tmp_path.iterdir()) == []


def test_few_images_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((9, 8, 8, 3), np.uint8), labels=[0] * 9)
    with pytest.raises(ValueError, match="holds 9 images, but at least 10 are needed"):
        tuned(tmp_path / "x.npz", tmp_path / "w.safetensors")


class TestTheCommand:
    def typed(self, *words):
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["source", "fine-tune", *map(str, words)])

    def test_fine_tunes_and_logs_to_wandb_if_asked(self, data, tmp_path):
        words = ["--images", data, "--model", "shapes_vit", "--epochs", 1, "--batch-size", 12, "--wandb"]
        done = self.typed("--output", tmp_path / "w.safetensors", *words)
        assert done.exit_code == 0, done.output
        assert "epoch 1/1" in done.output
        assert list(tmp_path.glob("wandb/offline-run-*"))

    def test_a_missing_model_ends_with_status_2(self, tmp_path):
        done = self.typed("--output", tmp_path / "w.safetensors", "--images", "x.npz")
        assert done.exit_code == 2
        assert "no model was given: use --model" in done.output.replace("\n", " ")


def test_a_key_chooses_the_weights_to_start_from(data, tmp_path):
    torch.save({"state_dict": load_model("shapes_vit").vit.state_dict()}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"no state dict model\.checkpoint_key=ema; it has state_dict"):
        tuned(data, tmp_path / "o.safetensors", checkpoint=str(tmp_path / "w.pth"), checkpoint_key="ema")
