"""Corrupted copies on disk: the published layouts, the same images from any number of processes, resuming."""

from __future__ import annotations

import io
import os
import shutil
from collections import namedtuple

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from tta_bench.cli.app import app
from tta_bench.datasets.classification.cifar_c import cifar10_c, cifar100_c
from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.imagenet_c import imagenet_c
from tta_bench.datasets.corruptions import corrupt
from tta_bench.files import WriteError
from tta_bench.prepare.corrupt import CorruptionRecipe, corrupt_files

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) % 3


def written(images, output, family, processes=1, **settings):
    """What was printed."""
    console = Console(file=io.StringIO(), width=300)
    corrupt_files(CorruptionRecipe(str(images), str(output), family, **settings), console, processes)
    return console.file.getvalue()


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Images of 20x16 pixels in classes named as in ImageNet, and others that do not count."""
    folder = tmp_path_factory.mktemp("clean")
    for name in ("n01440764/a.png", "n01440764/b.JPEG", "n01443537/a.jpg", "n01443537/.hidden.png", "n01443537/x.txt"):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        if file.suffix == ".txt":
            file.write_text("no image")
        else:
            Image.fromarray(RNG.integers(0, 256, (16, 20, 3), dtype=np.uint8)).save(file)
    return folder


@pytest.fixture(scope="module")
def jpegs(clean, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "jpegs"
    text = written(clean, folder, "tiny", 2, domains="fog,gaussian_noise", severities=(1, 4), image_size=8)
    (folder.parent / "printed").write_text(text)
    return folder


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    np.savez(folder / "clean.npz", test_images=PIXELS, test_labels=LABELS)
    written(folder / "clean.npz", folder / "out", "cifar", 2, domains="contrast,shot_noise", seed=3)
    return folder


class TestJpegFolders:
    def test_are_laid_out_as_published(self, jpegs):
        images = ["n01440764/a.JPEG", "n01440764/b.JPEG", "n01443537/a.JPEG"]
        places = [f"{name}/{severity}" for name in ("fog", "gaussian_noise") for severity in (1, 4)]
        found = content(jpegs)
        assert sorted(found) == sorted([*(f"{p}/{i}" for p in places for i in images), "classes.txt", "corrupted.json"])
        assert found["classes.txt"] == b"n01440764\nn01443537\n"

    def test_hold_what_a_run_corrupts_on_the_fly_saved_at_quality_85(self, clean, jpegs):
        same = corrupted(images=str(clean), image_size=8, family="tiny", domains=["fog/4", "gaussian_noise/1"])
        for domain in same.domains:
            for i, name in enumerate(("n01440764/a", "n01440764/b", "n01443537/a")):
                stream = io.BytesIO()
                Image.fromarray(same.load(domain, i)).save(stream, "JPEG", quality=85)
                expected = np.asarray(Image.open(stream))
                np.testing.assert_array_equal(np.asarray(Image.open(jpegs / domain / f"{name}.JPEG")), expected)

    def test_what_is_not_among_them_is_counted(self, jpegs):
        printed = (jpegs.parent / "printed").read_text()
        assert "note: files and folders that are not read: 1 x .txt\n" in printed

    def test_are_read_as_the_last_line_says(self, jpegs):
        assert f"dataset=imagenet_c dataset.root={jpegs} dataset.image_size=8" in (jpegs.parent / "printed").read_text()
        data = imagenet_c(
            root=str(jpegs), classes=f"{jpegs}/classes.txt", image_size=8, domains=["fog"], severity=4
        )  # fmt: skip
        assert data.labels("fog").tolist() == [0, 0, 1]
        np.testing.assert_array_equal(data.load("fog", 2), Image.open(jpegs / "fog/4/n01443537/a.JPEG"))

    def test_are_named_in_a_result_as_our_own_making(self, clean, jpegs, tmp_path):
        how = {"classes": f"{jpegs}/classes.txt", "image_size": 8, "domains": ["fog"], "severity": 4}
        told = imagenet_c(root=str(jpegs), **how).describe()["made_by"]
        assert (told["frost_textures"], told["family"], told["clean"]) == (
            "generated", "tiny", corrupted(images=str(clean), image_size=8).describe()["clean"]
        )  # fmt: skip
        (tmp_path / "fog").symlink_to(jpegs / "fog")
        assert "made_by" not in imagenet_c(root=str(tmp_path), **how).describe()
        sentences = {"{": r"corrupted\.json is damaged", "{}": "was not written by tta-bench data corrupt"}
        for content, sentence in sentences.items():
            (tmp_path / "corrupted.json").write_text(content)
            with pytest.raises(ValueError, match=sentence):
                imagenet_c(root=str(tmp_path), **how)

    def test_a_cut_costs_only_the_images_that_are_missing(self, clean, jpegs):
        before = content(jpegs)
        times = {name: (jpegs / name).stat().st_mtime_ns for name in before if name.endswith("JPEG")}
        lost = "fog/4/n01443537/a.JPEG"
        (jpegs / lost).rename(jpegs / "fog/4/n01443537/.a.JPEG.part")
        os.truncate(jpegs / "fog/4/n01443537/.a.JPEG.part", 5)
        written(clean, jpegs, "tiny", domains="fog,gaussian_noise", severities=(1, 4), image_size=8)
        assert content(jpegs) == before
        again = [name for name, t in times.items() if (jpegs / name).stat().st_mtime_ns != t]
        assert again == [lost]

    def test_of_an_array_are_named_by_label_and_number(self, arrays, tmp_path):
        written(arrays / "clean.npz", tmp_path / "out", "imagenet", domains="contrast", severities=(5,))
        data = image_folder(root=str(tmp_path / "out/contrast"), image_size=None, resize=None)
        assert data.labels("5").tolist() == sorted(LABELS.tolist())
        assert (tmp_path / "out/contrast/5/2/00000002.JPEG").is_file()

    def test_two_images_of_one_name_are_refused(self, tmp_path):
        (tmp_path / "in/a").mkdir(parents=True)
        for name in ("x.png", "x.jpg"):
            Image.fromarray(PIXELS[0]).save(tmp_path / "in/a" / name)
        with pytest.raises(ValueError, match=r"2 images would be called a/x\.JPEG"):
            written(tmp_path / "in", tmp_path / "out", "tiny")


class TestBlocks:
    def test_are_the_severities_one_after_the_other(self, arrays):
        assert np.load(arrays / "out/labels.npy").tolist() == LABELS.tolist() * 5
        domains = [f"{name}/{severity}" for name in ("contrast", "shot_noise") for severity in range(1, 6)]
        same = corrupted(images=str(arrays / "clean.npz"), family="cifar", domains=domains, seed=3)
        for domain in domains:
            name, severity = domain.split("/")
            block = np.load(arrays / "out" / f"{name}.npy").reshape(5, 40, 8, 8, 3)[int(severity) - 1]
            np.testing.assert_array_equal(block, [same.load(domain, i) for i in range(40)])

    def test_one_process_writes_what_two_write(self, arrays, tmp_path):
        written(arrays / "clean.npz", tmp_path / "out", "cifar", 1, domains="contrast,shot_noise", seed=3)
        assert content(tmp_path / "out") == content(arrays / "out")

    def test_a_cut_costs_the_corruption_that_was_being_written(self, arrays):
        before = content(arrays / "out")
        (arrays / "out/contrast.npy").rename(arrays / "out/contrast.npy.part")
        os.truncate(arrays / "out/contrast.npy.part", 1000)
        kept = (arrays / "out/shot_noise.npy").stat().st_mtime_ns
        printed = written(arrays / "clean.npz", arrays / "out", "cifar", domains="contrast,shot_noise", seed=3)
        assert content(arrays / "out") == before
        assert (arrays / "out/shot_noise.npy").stat().st_mtime_ns == kept
        assert printed.startswith("contrast: 40 images, 5 severities\n200 images in")

    @pytest.mark.parametrize(("classes", "name"), [(10, "cifar10_c"), (100, "cifar100_c")])
    def test_of_32_pixels_are_read_as_the_last_line_says(self, tmp_path, classes, name):
        pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
        np.savez(tmp_path / "clean.npz", images=pixels, labels=[classes - 1, 0, 4])
        printed = written(tmp_path / "clean.npz", tmp_path / "out", "cifar", 1, domains="contrast")
        assert f"read them with dataset={name} dataset.root={tmp_path}/out" in printed
        data = {"cifar10_c": cifar10_c, "cifar100_c": cifar100_c}[name](root=f"{tmp_path}/out", domains=["contrast/2"])
        assert data.labels("contrast/2").tolist() == [classes - 1, 0, 4]
        np.testing.assert_array_equal(
            data.load("contrast/2", 1), corrupt(pixels[1], "contrast", 2, family="cifar", rng=np.random.default_rng(0))
        )

    def test_of_other_sizes_say_that_no_data_set_reads_them(self, arrays):
        printed = written(arrays / "clean.npz", arrays / "out", "cifar", 1, domains="contrast", seed=3)
        assert "take 32x32 pixels and at most 100 classes" in printed

    def test_images_of_two_sizes_are_one_sentence(self, clean, tmp_path):
        (tmp_path / "in/a").mkdir(parents=True)
        Image.fromarray(PIXELS[0]).save(tmp_path / "in/a/0.png")
        Image.fromarray(PIXELS[0, :4]).save(tmp_path / "in/a/1.png")
        with pytest.raises(ValueError, match="image 1 has 4x8 pixels, but the first has 8x8: set --image-size"):
            written(tmp_path / "in", tmp_path / "out", "cifar", domains="contrast")


class TestMistakes:
    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"family": "cifar10"}, "--family must be one of imagenet, cifar, tiny; got 'cifar10'"),
            ({"severities": (0, 1)}, r"--severities must be a subset of 1, 2, 3, 4, 5; got \[0, 1\]"),
            ({"severities": ()}, "--severities must be a subset of"),
            ({"family": "cifar", "severities": (5,)}, "holds all five severities: omit --severities"),
            ({"domains": "fog/3"}, "without a severity, not 'fog/3'"),
            ({"domains": "fogg"}, "there is no corruption 'fogg'; did you mean 'fog'"),
        ],
    )
    def test_a_wrong_recipe_is_one_sentence(self, changed, message):
        with pytest.raises(ValueError, match=message):
            CorruptionRecipe(**{"images": "x", "output": "y", "family": "tiny", **changed})

    @pytest.mark.parametrize(("changed", "key"), [({"seed": 4}, "seed"), ({"family": "imagenet"}, "family")])
    def test_a_folder_takes_images_of_one_kind_only(self, arrays, changed, key):
        settings = {"family": "cifar", "domains": "fog", "seed": 3, **changed}
        with pytest.raises(ValueError, match=f"already holds corrupted images that differ in {key}"):
            written(arrays / "clean.npz", arrays / "out", **settings)

    def test_a_folder_of_something_else_is_left_alone(self, arrays, tmp_path):
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(ValueError, match="is not empty and was not written by this command"):
            written(arrays / "clean.npz", tmp_path, "cifar")
        assert list(content(tmp_path)) == ["thesis.tex"]

    def test_a_disk_that_is_too_small_is_known_before(self, arrays, tmp_path, monkeypatch):
        usage = namedtuple("usage", "total used free")(0, 0, 15 * 5 * PIXELS.nbytes - 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(WriteError, match=r"has only .* kB free: choose another --output, or fewer"):
            written(arrays / "clean.npz", tmp_path / "out", "cifar")
        assert not (tmp_path / "out/corrupted.json").exists()

    def test_a_damaged_image_is_named(self, clean, tmp_path):
        (tmp_path / "in/a").mkdir(parents=True)
        (tmp_path / "in/a/0.png").write_bytes((clean / "n01440764/a.png").read_bytes())
        (tmp_path / "in/a/1.png").write_bytes(b"\x89PNG")
        done = CliRunner().invoke(
            app, ["data", "corrupt", "--input", f"{tmp_path}/in", "--output", f"{tmp_path}/out", "--family", "tiny",
                  "--domains", "contrast", "--severities", "5", "--processes", "1"],
        )  # fmt: skip
        assert done.exit_code == 2
        assert "a/1.png is not a readable image: remove or replace it" in done.output.replace("\n", "")


def test_a_family_of_imagenet_cuts_folders_to_224_as_published(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(RNG.integers(0, 256, (300, 400, 3), dtype=np.uint8)).save(tmp_path / "a/0.png")
    assert CorruptionRecipe(str(tmp_path), "out", "imagenet").open().clean[0].shape == (224, 224, 3)
    assert CorruptionRecipe(str(tmp_path), "out", "imagenet", image_size=64).open().clean[0].shape == (64, 64, 3)
    assert CorruptionRecipe(str(tmp_path), "out", "tiny").open().clean[0].shape == (300, 400, 3)
