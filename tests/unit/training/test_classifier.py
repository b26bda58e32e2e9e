"""Training the source model of shapes_c: the written weights can be loaded, and interruptions change nothing."""

from __future__ import annotations

import io

import lightning.pytorch as L
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tests.helpers.trainings import cut_short, different_weights
from tta_bench.cli.app import app
from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.models.loading.load_model import load_model
from tta_bench.training import classifier
from tta_bench.training.classifier import ClassifierTraining, train_shapes_vit

pytestmark = pytest.mark.filterwarnings("ignore:.*log_every_n_steps:UserWarning")


class InThisProcess:
    """Stands for multiprocessing's context where a pool would take longer to start than to draw."""

    def Pool(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def imap(self, function, jobs, chunksize):
        return map(function, jobs)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """On the CPU, on few images."""
    trainer = L.Trainer
    monkeypatch.setattr(L, "Trainer", lambda **kw: trainer(**kw, accelerator="cpu"))
    for name, value in {"NUM_VALIDATION": 30, "NUM_TEST": 40, "BATCH_SIZE": 16}.items():
        monkeypatch.setattr(classifier, name, value)
    monkeypatch.setattr(classifier, "get_context", lambda _: InThisProcess())


def trained(output):
    console = Console(file=io.StringIO(), width=300)
    train_shapes_vit(output, seed=1, epochs=2, num_images=48, lr=1e-3, console=console)
    return console.file.getvalue()


def test_what_is_written_is_what_is_loaded_and_a_cut_changes_nothing(tmp_path, monkeypatch, capsys):
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    printed = trained(whole).splitlines()
    assert capsys.readouterr().out == "", "bars are for terminals"

    images = torch.stack([torch.from_numpy(render("test", i)).permute(2, 0, 1) for i in range(40)]) / 255
    backbone = load_model(checkpoint=whole, config=whole.with_suffix(".yaml"))
    right = (backbone(images).argmax(dim=1) == torch.tensor([label(i) for i in range(40)])).float().mean()
    accuracy = f"{100 * right:.2f} %"
    assert (
        whole.with_suffix(".yaml")
        .read_text()
        .startswith(
            "# Trained by: tta-bench source train shapes_vit --output whole.safetensors --seed 1 --epochs 2 "
            "--num-images 48 --lr 0.001\n"
            f"# Clean accuracy of these weights on 40 test images: {accuracy}\n"
        )
    )
    assert [line.partition(":")[0] for line in printed[:2]] == ["epoch 1/2", "epoch 2/2"]
    assert printed[2].startswith(f"clean accuracy {accuracy}; model=local model.checkpoint={whole}")

    cut_short(lambda: trained(cut), ClassifierTraining)
    assert "resuming from" in trained(cut)
    assert different_weights(cut, whole) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "w.pth"], "--output must end in .safetensors, got w.pth"),
        (["--output", "w.safetensors", "--lr", "0"], "--lr must be above 0, got 0.0"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["source", "train", "shapes_vit", *words])
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_segmenter_needs_a_data_set():
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["source", "train-segmenter", "--output", "w.safetensors"])
    assert done.exit_code == 2
    assert "no data set was given: use, for example, dataset=streets_c" in done.output.replace("\n", " ")
