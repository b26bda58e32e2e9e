"""Scores restricted to the classes of a data set, as published for ImageNet-R and -A, from folders to results."""

from __future__ import annotations

import io

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

from tta_bench.config.compose import compose_run
from tta_bench.config.words import ConfigError
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.experiments.run import Run
from tta_bench.experiments.source_cache import source_file
from tta_bench.models.backbones.linear_head import LinearHeadBackbone
from tta_bench.models.backbones.timm_cnn import TimmBackbone
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.parts.class_subset import keep_classes
from tta_bench.prepare.pack import pack
from tta_bench.report import comparison_tables, report_text

KEPT = (1, 6, 999)
FOLDERS = {"r": ("n01443537", "n15075141"), "a": ("n01443537", "6")}  # labels 1, 999 and 1, 6 of the 1,000
NEITHER = (0.0,) * 3, (1.0,) * 3


def backbones():
    vit = timm.create_model("test_vit", img_size=32)
    return {
        "vit": ViTBackbone(vit, *NEITHER),
        "cnn": TimmBackbone(timm.create_model("test_resnet"), *NEITHER),
        "any": LinearHeadBackbone(torchvision.models.resnet18(), *NEITHER),
    }


@pytest.mark.parametrize("kind", ["vit", "cnn", "any"])
def test_scores_are_those_of_the_classes_that_are_kept(kind):
    torch.manual_seed(0)
    backbone = backbones()[kind].eval()
    images = torch.rand(2, 3, 32, 32)
    before = backbone(images)
    trained = [name for name, p in backbone.named_parameters() if p.requires_grad]
    keep_classes(backbone, KEPT)
    torch.testing.assert_close(backbone(images), before[:, list(KEPT)])
    assert (backbone.num_classes, backbone.kept_classes) == (3, KEPT)
    assert [name for name, p in backbone.named_parameters() if p.requires_grad] == trained


def test_a_network_with_two_heads_is_refused():
    backbone = backbones()["vit"]
    backbone.vit.second = torch.nn.Linear(64, 1000)
    with pytest.raises(ValueError, match=r"do not come from one linear layer, .* set dataset\.classes=imagenet"):
        keep_classes(backbone, KEPT)


@pytest.fixture
def root(tmp_path):
    """Two domains that have classes of ImageNet, and clean images of more of them."""
    rng = np.random.default_rng(0)
    for domain, names in {**FOLDERS, "clean": ("n01440764", "n01443537", "n15075141")}.items():
        for name in names:
            for i in range(4):
                file = tmp_path / "images" / domain / name / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    return tmp_path / "images"


def opened(root, **settings):
    return image_folder(
        root=str(root), image_size=None, resize=None, source_images=str(root / "clean"), **settings
    )  # fmt: skip


def test_labels_are_positions_among_the_classes_that_some_domain_has(root):
    data = opened(root, classes="imagenet_subset", domains=["r", "a"])
    assert data.describe()["model_classes"] == list(KEPT)
    assert data.describe()["classes"] == 3
    assert [sorted(set(data.labels(d).tolist())) for d in ("r", "a")] == [[0, 2], [0, 1]]
    assert (
        data.source_images().labels.tolist() == [0] * 4 + [2] * 4
    )  # classes that the stream lacks are not in the source
    assert "model_classes" not in opened(root, classes="imagenet").describe()


def test_a_misspelt_word_names_the_right_ones(root):
    with pytest.raises(FileNotFoundError, match=r"imagenet_subst: .* must be imagenet, .* also imagenet_subset,"):
        opened(root, classes="imagenet_subst")


class TestARun:
    @pytest.fixture
    def words(self, root, tmp_path):
        torch.manual_seed(0)
        network = timm.create_model("test_vit", img_size=8, patch_size=4)
        torch.nn.init.normal_(network.head.weight, std=0.3)
        save_file(network.state_dict(), tmp_path / "w.safetensors")
        card = "architecture: test_vit\nkwargs: {img_size: 8, patch_size: 4}\n"
        (tmp_path / "w.yaml").write_text(card)
        model = [f"model.checkpoint={tmp_path}/w.safetensors", f"model.config={tmp_path}/w.yaml", "model=local"]
        data = ["dataset=image_folder", f"dataset.root={root}", "dataset.image_size=null", "dataset.resize=null"]
        data += [f"dataset.source_images={root}/clean", "dataset.domains=[r,a]", "dataset.classes=imagenet_subset"]
        rest = ["setting=csc", "setting.batch_size=4", "logger=off", f"output={tmp_path}/runs"]
        return [*model, *data, *rest, f"cache_dir={tmp_path}/cache"]

    def run(self, *words):
        return Run(compose_run(list(words)))

    def test_the_model_chooses_among_them_on_files_and_packed_alike(self, words, root, tmp_path):
        results = [self.run(*words, "method=source", "forgetting=8").execute(Console(file=io.StringIO()))]
        folder = tmp_path / "pack"
        data = opened(root, classes="imagenet_subset", domains=["r", "a"])
        pack(data, folder, Console(file=io.StringIO()), threads=1)
        words = [w for w in words if not w.startswith("dataset")]
        words += ["dataset=packed", f"dataset.root={folder}", "method=source", "forgetting=8"]
        results.append(self.run(*words).execute(Console(file=io.StringIO())))
        backbone = self.run(*words).backbone
        assert (backbone.num_classes, backbone.kept_classes) == (3, KEPT)
        wrong = 0
        for domain in ("r", "a"):
            labels = torch.tensor(data.labels(domain))
            images = torch.stack([torch.tensor(data.load(domain, i)) for i in range(len(labels))])
            scores = backbone(images.permute(0, 3, 1, 2) / 255)
            wrong += int((scores.argmax(dim=1) != labels).sum())
        assert wrong
        for result in results:
            assert result["status"] == "done", result.get("error")
            assert result["mean_error"] == pytest.approx(100 * wrong / 16)
            assert result["forgetting"] == 0.0
        assert results[0]["source_error_before"] == results[1]["source_error_before"]
        assert comparison_tables(results[:1])
        assert "model classes 1, 6, 999" in report_text(results[:1], "html", "source", None)

    def test_what_is_learned_of_the_source_is_kept_apart(self, words, tmp_path):
        def file(*others):
            run = self.run(*words, "method=eata", *others)
            return source_file(run.method, run.data, tmp_path)

        fewer = file("dataset.domains=[r]")
        assert file() not in {fewer, file("dataset.classes=imagenet")}
        assert file() == file()

    def test_a_model_of_fewer_classes_is_refused(self, words):
        others = [w for w in words if not w.startswith("model")]
        with pytest.raises(ConfigError, match="image_folder has 1000 classes, but model=shapes_vit has 10: choose"):
            self.run(*others, "model=shapes_vit", "method=source")
