"""Training the source model of scenes_c: new images in every epoch, and a cut changes nothing."""

from __future__ import annotations

import io

import lightning.pytorch as L
import pytest
import timm
import torch
from rich.console import Console
from safetensors.torch import load_file

from tests.helpers.trainings import cut_short, different_weights
from tta_bench.datasets.procedural.scenes import label, render
from tta_bench.models.loading.load_model import load_model
from tta_bench.training import scenes_vit
from tta_bench.training.scenes_vit import ARCHITECTURE, KWARGS, ScenesTraining, train_scenes_vit

pytestmark = pytest.mark.filterwarnings("ignore:.*log_every_n_steps:UserWarning")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """On the CPU, without a progress bar, two blocks on few images."""
    trainer = L.Trainer
    monkeypatch.setattr(L, "Trainer", lambda **kw: trainer(**kw | {"accelerator": "cpu", "enable_progress_bar": False}))
    changed = {"NUM_VALIDATION": 20, "NUM_TEST": 40, "BATCH_SIZE": 20, "KWARGS": {**KWARGS, "depth": 2}}
    for name, value in changed.items():
        monkeypatch.setattr(scenes_vit, name, value)


@pytest.fixture
def seen(monkeypatch):
    """(split, index) of every image that is rendered, in order."""
    calls = []
    monkeypatch.setattr(scenes_vit, "render", lambda *where: calls.append(where) or render(*where))
    return calls


def trained(output):
    console = Console(file=io.StringIO(), width=300)
    train_scenes_vit(output, seed=1, epochs=3, num_images=40, lr=0.02, num_workers=0, console=console)
    return console.file.getvalue()


def test_what_is_written_is_what_is_loaded_and_no_image_is_shown_twice(tmp_path, seen):
    output = tmp_path / "whole.safetensors"
    printed = trained(output).splitlines()

    images = torch.stack([torch.from_numpy(render("test", i)).permute(2, 0, 1) for i in range(40)]) / 255
    backbone = load_model(checkpoint=output, config=output.with_suffix(".yaml"))
    right = (backbone(images).argmax(dim=1) == torch.tensor([label(i) for i in range(40)])).float().mean()
    assert [line.partition(":")[0] for line in printed[:3]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert printed[3].startswith(f"clean accuracy {100 * right:.2f} %; model=local model.checkpoint={output}")
    assert [index for split, index in seen if split == "train"] == list(range(120))
    assert {load_file(output)[name].dtype for name in load_file(output)} == {torch.float16}


def test_a_cut_changes_nothing_and_repeats_no_epoch(tmp_path, seen, monkeypatch):
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    trained(whole)
    cut_short(lambda: trained(cut), ScenesTraining)
    seen.clear()
    trained(cut)
    assert [index for split, index in seen if split == "train"] == list(range(40, 120))
    assert different_weights(cut, whole) == []


def test_every_weight_has_one_optimizer_and_the_rate_rises_stays_and_falls_to_zero():
    module = ScenesTraining(timm.create_model(ARCHITECTURE, **{**KWARGS, "depth": 2}), 20, 0.02, 1000, 0)
    (muon, adamw), schedules = module.configure_optimizers()
    groups = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in (muon, adamw)]
    names = {id(p): name for name, p in module.model.named_parameters()}
    assert sorted(names[id(p)] for part in groups for p in part) == sorted(names.values())
    assert {names[id(p)].partition(".")[2].partition(".")[2] for p in groups[0]} == {
        "attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight",
    }  # fmt: skip
    rates = []
    for _ in range(1000):
        rates.append(muon.param_groups[0]["lr"] / 0.02)
        muon.step()
        schedules[0].step()
    assert rates[0] == pytest.approx(1 / 30)
    assert rates[29:650] == pytest.approx([1] * 621)
    assert rates[824] == pytest.approx(0.5)
    assert muon.param_groups[0]["lr"] == 0


def test_it_starts_like_a_trained_vit_ends_without_a_rate_and_holds_the_written_weights(tmp_path, monkeypatch):
    seen = {}

    def start(self):
        seen.update(module=self, first={name: value.clone() for name, value in self.model.state_dict().items()})

    monkeypatch.setattr(ScenesTraining, "on_train_start", start)
    monkeypatch.setattr(
        ScenesTraining,
        "on_train_end",
        lambda self: seen.update(rates=[group["lr"] for o in self.optimizers() for group in o.param_groups]),
    )
    trained(tmp_path / "w.safetensors")

    assert seen["rates"] == [0, 0]
    written, network = load_file(tmp_path / "w.safetensors"), seen["module"].model
    assert [name for name, value in network.state_dict().items() if not torch.equal(value, written[name].float())] == []
    width = KWARGS["embed_dim"]
    query, key, value = seen["first"]["blocks.0.attn.qkv.weight"].split(width)
    projection = seen["first"]["blocks.0.attn.proj.weight"]
    for product, sign in ((query.T @ key, 1), (projection @ value, -1)):
        assert sign * product.diagonal().mean() > 3 * product.abs().mean()
    positions = seen["first"]["pos_embed"][0, -64:]
    near, far = positions[0] @ positions[1], positions[0] @ positions[-1]
    assert near > far


def test_training_sees_views_of_other_contrast_and_brightness(tmp_path, monkeypatch):
    module = ScenesTraining(timm.create_model(ARCHITECTURE, **{**KWARGS, "depth": 1}), 20, 0.02, 10, 0)
    module.rng = torch.Generator().manual_seed(0)
    images = torch.rand(1000, 3, 2, 2, generator=torch.Generator().manual_seed(1)) * 0.4 + 0.3
    views = module.training_view(images)
    assert 0 <= views.min() <= views.max() <= 1
    same = torch.isclose(views, images, atol=1e-6).flatten(1).all(dim=1)
    assert same.float().mean() == pytest.approx(0.5 * 0.7, abs=0.05)
    spread = views.flatten(1).std(dim=1) / images.flatten(1).std(dim=1)
    assert spread.min() < 0.2
    assert spread.max() > 1.8

    shown = []
    monkeypatch.setattr(ScenesTraining, "training_view", lambda self, images: shown.append(len(images)) or images)
    trained(tmp_path / "w.safetensors")
    assert sum(shown) == 120
