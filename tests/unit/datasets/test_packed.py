"""Packing a data set: the same images without decoding, only complete files, and cheap interruptions."""

from __future__ import annotations

import io
import json
import shutil
from collections import namedtuple

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.packed import packed, pixel_file
from tta_bench.files import WriteError
from tta_bench.prepare.pack import pack

RNG = np.random.default_rng(0)


@pytest.fixture
def root(tmp_path):
    """Two domains of noise in classes a and b, and clean images of the source."""
    for name in ("day/a/0", "day/a/1", "day/b/0", "night/a/0", "night/b/0", "clean/a/0", "clean/b/0"):
        file = tmp_path / "images" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    return tmp_path / "images"


def opened(root, **settings):
    settings = {"image_size": 8, "resize": None, "source_images": f"{root}/clean", **settings}
    return image_folder(root=str(root), **settings)


def packing(data, folder, **settings):
    console = Console(file=io.StringIO(), width=200)
    pack(data, folder, console, threads=2, **settings)
    return console.file.getvalue()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_not_packed_is_counted(root, tmp_path):
    assert "note:" not in packing(opened(root), tmp_path / "pack")
    next(root.glob("day/*/*")).with_suffix(".heic").write_text("x")
    assert "note: files and folders that are not read: 1 x .heic\n" in packing(opened(root), tmp_path / "other")


def test_a_packed_data_set_has_the_same_images_labels_and_source(root, tmp_path):
    data = opened(root)
    packing(data, tmp_path / "pack")
    copy = packed(root=str(tmp_path / "pack"))
    assert (copy.name, copy.domains) == ("image_folder", ("day", "night"))
    for domain in data.domains:
        np.testing.assert_array_equal(copy.labels(domain), data.labels(domain))
        for i in range(len(data.labels(domain))):
            np.testing.assert_array_equal(copy.load(domain, i), data.load(domain, i))
    assert copy.source_images().labels.tolist() == [0, 1]
    np.testing.assert_array_equal(copy.source_images()[1], data.source_images()[1])
    told = copy.describe()
    assert told["packed_from"] == data.describe()
    assert told["digest"] == data.describe()["digest"]
    assert isinstance(copy.images["day"].pixels, np.memmap)


@pytest.mark.parametrize("count", [512, 513, 1030])  # 512 images are decoded at a time
def test_every_image_of_a_large_domain_is_packed(tmp_path, count):
    pixels = (1 + np.arange(count)[:, None, None, None] + 50 * np.arange(3)) % 256 * np.ones((count, 2, 2, 3), int)
    np.savez(tmp_path / "x.npz", images=pixels.astype(np.uint8), labels=np.arange(count) % 7)
    data = corrupted(images=str(tmp_path / "x.npz"), domains=["clean"])
    packing(data, tmp_path / "pack")
    copy = packed(root=str(tmp_path / "pack"))
    np.testing.assert_array_equal(copy.images["clean"].pixels, pixels)
    np.testing.assert_array_equal(copy.labels("clean"), np.arange(count) % 7)


def test_domains_of_a_pack_may_be_chosen(root, tmp_path):
    packing(opened(root), tmp_path)
    assert packed(root=str(tmp_path), domains=["night", "day"]).domains == ("night", "day")
    assert packed(root=str(tmp_path), domains="night").domains == ("night",)
    with pytest.raises(ValueError, match="has no domain 'fog'; it holds: day, night"):
        packed(root=str(tmp_path), domains=["fog"])


def test_a_severity_in_the_name_of_a_domain_is_kept(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 8, 8, 3), np.uint8), labels=[0, 1, 2])
    data = corrupted(images=str(tmp_path / "x.npz"), domains=["contrast", "contrast/2"], family="cifar")
    packing(data, tmp_path / "pack")
    copy = packed(root=str(tmp_path / "pack"))
    assert copy.domains == ("contrast", "contrast/2")
    np.testing.assert_array_equal(copy.load("contrast/2", 1), data.load("contrast/2", 1))
    with pytest.raises(ValueError, match=r"set dataset\.source_images"):
        copy.source_images()


def test_the_source_may_be_left_out(root, tmp_path):
    packing(opened(root), tmp_path, with_source=False)
    assert not pixel_file(tmp_path, None).exists()
    with pytest.raises(ValueError, match="needs source images"):
        packed(root=str(tmp_path)).source_images()


class TestAnInterruption:
    @pytest.fixture
    def broken(self, root, tmp_path):
        """The second domain holds an image that cannot be read."""
        whole = (root / "night" / "b" / "0.png").read_bytes()
        (root / "night" / "b" / "0.png").write_bytes(whole[:60])
        data = opened(root)
        data.describe = lambda: {"it": "looks at no image"}
        with pytest.raises(ValueError, match=r"night/b/0\.png is not a readable image"):
            packing(data, tmp_path / "pack")
        (root / "night" / "b" / "0.png").write_bytes(whole)
        return data

    def test_leaves_no_file_that_looks_finished(self, broken, tmp_path):
        assert "domains/night.npy" not in files(tmp_path / "pack")
        assert "domains/day.npy" in files(tmp_path / "pack")
        with pytest.raises(FileNotFoundError, match=r"night\.npy is missing: packing was not finished, run the same"):
            packed(root=str(tmp_path / "pack"))

    def test_is_followed_by_the_rest_only(self, broken, tmp_path):
        stamp = pixel_file(tmp_path / "pack", "day").stat().st_mtime_ns
        loaded = []
        broken.load = lambda domain, index, load=broken.load: loaded.append(domain) or load(domain, index)
        packing(broken, tmp_path / "pack")
        assert pixel_file(tmp_path / "pack", "day").stat().st_mtime_ns == stamp
        assert loaded.count("day") == 1  # its first image, for its size
        assert not [name for name in files(tmp_path / "pack") if name.endswith(".part")]
        np.testing.assert_array_equal(packed(root=str(tmp_path / "pack")).load("night", 1), broken.load("night", 1))


class TestWhatIsWrong:
    def test_images_of_several_sizes_name_the_remedy(self, root, tmp_path):
        Image.new("RGB", (8, 9)).save(root / "day" / "a" / "1.png")
        with pytest.raises(ValueError, match=r"image 1 of day has 9x8 pixels, but the first has 8x8: set dataset\."):
            packing(opened(root, image_size=None), tmp_path / "pack")

    def test_a_folder_that_holds_another_data_set_is_left_alone(self, root, tmp_path):
        packing(opened(root), tmp_path / "pack")
        before = files(tmp_path / "pack")
        with pytest.raises(ValueError, match="differs in data: choose another folder"):
            packing(opened(root, image_size=4), tmp_path / "pack")
        assert files(tmp_path / "pack") == before

    def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(self, root, tmp_path, monkeypatch):
        usage = namedtuple("usage", "free")
        needed = 7 * 8 * 8 * 3
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(needed - 1))
        with pytest.raises(WriteError, match=r"needs 1\.3 kB, but .* has only 1\.3 kB free: choose another --output"):
            packing(opened(root), tmp_path / "pack")
        assert files(tmp_path / "pack") == []
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(needed))
        packing(opened(root), tmp_path / "pack")

    def test_a_folder_that_is_not_a_pack(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="is not a packed data set: create one with tta-bench data pack"):
            packed(root=str(tmp_path))
        for content in ("{", json.dumps({"schema": "other"}), "[]"):
            (tmp_path / "pack.json").write_text(content)
            with pytest.raises(ValueError, match=r"pack\.json (is damaged|does not describe)"):
                packed(root=str(tmp_path))

    def test_a_damaged_array_is_named(self, root, tmp_path):
        packing(opened(root), tmp_path)
        file = pixel_file(tmp_path, "day")
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(ValueError, match=f"cannot read {file}"):
            packed(root=str(tmp_path))
        np.save(file, np.zeros((2, 8, 8, 3), np.uint8))
        with pytest.raises(ValueError, match="does not match the labels beside it: pack the data set again"):
            packed(root=str(tmp_path))
