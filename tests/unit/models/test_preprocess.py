"""Preprocessing profiles: their effect on images, which is the same for source and stream."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from tta_bench import testing
from tta_bench.cli.app import app
from tta_bench.config.compose import compose_run
from tta_bench.config.words import ConfigError
from tta_bench.datasets.classification.imagenet_c import imagenet_c
from tta_bench.experiments.run import Run
from tta_bench.experiments.source_cache import source_file
from tta_bench.methods import DPCore
from tta_bench.models.loading.load_model import load_model
from tta_bench.models.preprocess import PreparedBatches, Preprocess, enlarge, profile_of, resize_and_crop
from tta_bench.types import SourceNeed

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
RNG = np.random.default_rng(0)


def write_model(folder, img_size):
    """A tiny ViT with its description; its words for a command line."""
    kwargs = {"img_size": img_size, "patch_size": img_size // 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    kwargs["num_classes"] = 4
    torch.manual_seed(0)
    save_file(timm.create_model("vit_tiny_patch16_224", **kwargs).state_dict(), folder / "w.safetensors")
    card = {"architecture": "vit_tiny_patch16_224", "kwargs": kwargs, "mean": MEAN, "std": STD}
    (folder / "w.yaml").write_text(json.dumps(card))
    return {"checkpoint": str(folder / "w.safetensors"), "config": str(folder / "w.yaml")}


@pytest.fixture(params=[224, 32])
def model(request, tmp_path):
    return request.param, write_model(tmp_path, request.param)


@pytest.mark.parametrize(
    ("profile", "mean", "std"), [("timm", MEAN, STD), ("native", (0,) * 3, (1,) * 3), ("paper", (0,) * 3, (1,) * 3)]
)
def test_a_profile_says_what_the_network_sees(model, profile, mean, std):
    size, files = model
    backbone = load_model(**files, preprocess=profile)
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    seen = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(backbone(images), backbone.vit(seen))
    resize = (256, 224) if (profile, size) == ("paper", 224) else None
    assert backbone.preprocess == Preprocess(profile, mean, std, resize)


def test_values_set_by_hand_are_a_profile_of_their_own(tmp_path):
    files = write_model(tmp_path, 224)
    mean, std = [0.1, 0.1, 0.1], [0.2, 0.2, 0.2]
    own = Preprocess("own", tuple(mean), tuple(std))
    assert load_model(**files, mean=mean, std=std).preprocess == own
    assert load_model(**files, preprocess="paper", mean=mean, std=std).preprocess == replace(own, resize=(256, 224))


def test_an_unknown_profile_is_one_sentence():
    with pytest.raises(ValueError, match=r"^model\.preprocess must be one of timm, paper, native; got 'papr'$"):
        profile_of("papr", MEAN, STD, 224)
    with pytest.raises(ConfigError, match=r"model\.preprocess must be one of timm, paper, native; got 'papr'"):
        compose_run(["model.preprocess=papr"])


@pytest.mark.parametrize(("height", "width"), [(224, 224), (300, 401), (90, 60)])
def test_resizing_agrees_with_pillows_to_a_grey_level(height, width):
    pixels = np.array(Image.fromarray(RNG.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((width, height)))
    scale = 256 / min(height, width)
    large = Image.fromarray(pixels).resize((int(scale * width), int(scale * height)), Image.Resampling.BILINEAR)
    left, top = (round((side - 224) / 2) for side in large.size)
    expected = np.array(large.crop((left, top, left + 224, top + 224)), dtype=float)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    ours = resize_and_crop(tensor, 256, 224)[0].permute(1, 2, 0).numpy() * 255
    assert np.abs(ours - expected).max() < 1.001
    assert np.abs(expected - pixels[:224, :224]).max() > 50 if height == 224 else True


class TestEnlarging:
    def test_is_bilinear_with_corners_not_aligned(self):
        two = torch.tensor([[0.0, 1.0], [0.0, 1.0]]).expand(1, 3, 2, 2)
        row = torch.tensor([0.0, 0.25, 0.75, 1.0])  # centres at -1/4, 1/4, 3/4, 5/4 of the small pixels
        torch.testing.assert_close(enlarge(two, 4), row.expand(1, 3, 4, 4))

    def test_leaves_images_of_the_right_size_alone(self):
        images = torch.rand(1, 3, 4, 4)
        assert enlarge(images, 4) is images
        assert enlarge(images, None) is images

    @pytest.mark.parametrize("shape", [(1, 3, 5, 5), (1, 3, 3, 2)])
    def test_of_larger_ones_and_rectangles_names_the_remedy(self, shape):
        with pytest.raises(ValueError, match=r"do not fit a model of 4x4: set dataset\.image_size=4"):
            enlarge(torch.rand(shape), 4)


class TestPreparing:
    BYTES = torch.from_numpy(RNG.integers(0, 256, (2, 3, 12, 20), dtype=np.uint8))

    @pytest.fixture
    def backbone(self):
        """A network of 16 pixels that cuts stream images out of 20, and source images out of 40."""
        backbone = testing.toy_backbone()
        backbone.preprocess = Preprocess("own", (0.5,) * 3, (0.25,) * 3, (20, 16))
        backbone.source_preprocess = Preprocess("own", (0.1,) * 3, (0.2,) * 3, (40, 8))
        return backbone

    def test_makes_bytes_floats_of_the_networks_size(self, backbone):
        prepared = backbone.prepare(self.BYTES)
        torch.testing.assert_close(prepared, resize_and_crop(self.BYTES / 255, 20, 16))
        assert torch.equal(prepared, backbone.prepare(self.BYTES / 255))

    def test_enlarges_what_is_still_too_small(self, backbone):
        backbone.preprocess = Preprocess("own", (0.5,) * 3, (0.25,) * 3, (20, 8))
        small = resize_and_crop(self.BYTES / 255, 20, 8)
        torch.testing.assert_close(backbone.prepare(self.BYTES), enlarge(small, 16))

    def test_follows_the_source_profile_while_the_source_is_learned(self, backbone):
        with backbone.on_source():
            of_source = backbone.prepare(self.BYTES)
        torch.testing.assert_close(of_source, enlarge(resize_and_crop(self.BYTES / 255, 40, 8), 16))
        torch.testing.assert_close(backbone.prepare(self.BYTES), resize_and_crop(self.BYTES / 255, 20, 16))

    @pytest.mark.parametrize("factor", [2.0, -1.0, float("nan")])
    def test_refuses_floats_that_are_not_in_0_to_1(self, backbone, factor):
        with pytest.raises(ValueError, match=r"^images must be in \[0, 1\] and not normalised, .* got values from"):
            backbone.prepare(self.BYTES / 255 * factor)

    def test_refuses_whole_numbers_that_are_no_bytes(self, backbone):
        with pytest.raises(ValueError, match=r"^images must be uint8, or floats in \[0, 1\]; got int64$"):
            backbone.prepare(self.BYTES.long())

    def test_a_network_refuses_bytes_that_nobody_prepared(self, backbone):
        with pytest.raises(TypeError, match=r"takes floats in \[0, 1\]: convert images with backbone\.prepare"):
            backbone(self.BYTES)

    def test_of_a_loader_comes_anew_with_every_pass(self, backbone):
        labels = torch.arange(2)
        plain, labeled = (
            PreparedBatches(batches, backbone.prepare) for batches in ([self.BYTES], [(self.BYTES, labels)])
        )
        for _ in range(2):
            (images,) = plain
            ((same, found),) = labeled
            assert torch.equal(images, backbone.prepare(self.BYTES))
            assert torch.equal(same, images)
            assert found is labels


class TestInARun:
    @pytest.fixture
    def words(self, tmp_path):
        """Four images of 224 pixels for the stream and four for the source."""
        arrays = {
            f"{split}_images": RNG.integers(0, 256, (4, 224, 224, 3), dtype=np.uint8) for split in ("test", "source")
        }
        np.savez(tmp_path / "x.npz", **arrays, test_labels=np.arange(4), source_labels=np.arange(4))
        files = write_model(tmp_path, 224)
        return [
            "dataset=corrupted", f"dataset.images={tmp_path}/x.npz", "dataset.domains=[clean]", "setting=csc",
            "model=local", *(f"model.{key}={value}" for key, value in files.items()), "trainer=cpu", "logger=off",
            "method=dpcore", "method.num_source=4", "method.steps_new=1", f"output={tmp_path}/runs",
            f"cache_dir={tmp_path}/cache",
        ]  # fmt: skip

    @pytest.mark.parametrize("profile", ["paper", "native", "timm"])
    def test_source_and_stream_see_images_of_one_profile(self, words, profile):
        run = Run(compose_run([*words, f"model.preprocess={profile}"]))
        clean = torch.from_numpy(run.domains.load("clean", 0)).permute(2, 0, 1)[None] / 255
        source = torch.from_numpy(run.domains.source_images()[0]).permute(2, 0, 1)[None] / 255
        if profile == "paper":
            clean, source = (resize_and_crop(images, 256, 224) for images in (clean, source))
        sent = next(iter(run.data.test_dataloader()))
        (unlabeled,) = run.data.source_dataloader(SourceNeed.UNLABELED)
        for images, one in ((sent.images, clean), (unlabeled, source)):
            assert (run.backbone.prepare(images) - one).abs().amax(dim=(1, 2, 3)).min() < 1e-6

    def test_the_result_tells_it(self, words, tmp_path):
        done = CliRunner().invoke(app, ["run", *words, "model.preprocess=paper", "model.source_preprocess=timm"])
        assert done.exit_code == 0, done.output
        (file,) = tmp_path.glob("runs/*/*/*/*/result.json")
        assert json.loads(file.read_text())["preprocess"] == {
            "profile": "paper", "mean": [0, 0, 0], "std": [1, 1, 1], "resize": [256, 224], "image_size": 224,
            "source": {"profile": "timm", "mean": list(MEAN), "std": list(STD), "resize": None},
        }  # fmt: skip

    def test_the_source_is_learned_anew_for_another_profile(self, words, tmp_path):
        profiles = [["paper"], ["native"], ["timm"], ["paper", "model.source_preprocess=timm"]]
        runs = [Run(compose_run([*words, f"model.preprocess={first}", *rest])) for first, *rest in profiles]
        files = [source_file(run.method, run.data, tmp_path) for run in runs]
        assert len(set(files)) == 3
        assert files[2] == files[3]  # the same images, whatever the stream's are

    def test_a_data_set_that_resizes_itself_is_not_resized_twice(self, words, tmp_path):
        for i in range(4):
            (tmp_path / "day" / str(i)).mkdir(parents=True)
            Image.fromarray(RNG.integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(
                tmp_path / "day" / str(i) / "0.png"
            )
        folder = [
            *words[4:],
            "dataset=image_folder",
            f"dataset.root={tmp_path}",
            "dataset.domains=[day]",
            "setting=csc",
        ]
        with pytest.raises(ConfigError, match=r"\(dataset\.resize=256\) and model\.preprocess=paper would both resize"):
            Run(compose_run([*folder, "model.preprocess=paper"]))
        assert Run(compose_run([*folder, "model.preprocess=native"])).backbone.preprocess.profile == "native"
        run = Run(compose_run([*folder, "model.preprocess=paper", "dataset.resize=null"]))
        assert run.backbone.preprocess.resize == (256, 224)


class TestTheReleasedMixture:
    """Statistics of normalised source images, predictions on others: a switch, never the default."""

    def fitted(self, source_preprocess):
        backbone = testing.toy_backbone()
        backbone.source_preprocess = source_preprocess
        method = DPCore(backbone, num_source=32, seed=0)
        method.fit_source(testing.toy_data().source_dataloader(SourceNeed.UNLABELED, batch_size=16))
        return method

    def test_source_statistics_are_those_of_the_other_profile(self):
        other = Preprocess("own", (0.3,) * 3, (0.7,) * 3)
        mixed, plain = self.fitted(other), self.fitted(None)
        expected = testing.toy_backbone()
        expected.normalize = type(expected.normalize)(other.mean, other.std)
        alone = DPCore(expected, num_source=32, seed=0)
        alone.fit_source(testing.toy_data().source_dataloader(SourceNeed.UNLABELED, batch_size=16))
        for name, value in alone.source_state().items():
            torch.testing.assert_close(mixed.source_state()[name], value)
        assert not torch.allclose(plain.source_state()["source_mean"], mixed.source_state()["source_mean"])

    def test_the_stream_is_seen_as_before(self):
        images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        mixed, plain = (self.fitted(p).backbone for p in (Preprocess("own", (0.3,) * 3, (0.7,) * 3), None))
        assert torch.equal(mixed(images), plain(images))


def test_source_images_of_imagenet_c_are_cut_as_its_own_were(tmp_path):
    """A black frame of 16 pixels around 224 white ones: the published images are the white part."""
    pixels = np.zeros((256, 256, 3), dtype=np.uint8)
    pixels[16:240, 16:240] = 255
    frame = np.array(Image.fromarray(pixels).resize((512, 512), Image.Resampling.NEAREST))
    for folder, image in (("fog/5", pixels[16:240, 16:240]), ("clean", frame)):
        (tmp_path / folder / "a").mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / folder / "a" / "0.png")
    (tmp_path / "classes.txt").write_text("a\n")
    data = imagenet_c(
        root=str(tmp_path), domains=["fog"], classes=f"{tmp_path}/classes.txt", source_images=f"{tmp_path}/clean"
    )
    assert data.source_images()[0].shape == data.load("fog", 0).shape
    assert data.source_images()[0].min() > 180
