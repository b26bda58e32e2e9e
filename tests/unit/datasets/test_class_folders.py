"""Class folders: which files are images, their labels, how they are cropped, and damaged files."""

from __future__ import annotations

import os

import numpy as np
import pytest
import timm.data
import torchvision.transforms as T
from PIL import Image

from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.files.class_folders import find_images, open_folder
from tta_bench.datasets.files.class_names import imagenet_classes, label_map
from tta_bench.datasets.files.image_files import Crop, is_whole, read_image, split_damaged


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path, pixels=7, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (pixels,) * 3).save(path)


class TestLabels:
    def test_the_1000_classes_are_those_that_timm_knows_in_the_same_order(self):
        assert imagenet_classes() == tuple(timm.data.ImageNetInfo().label_names())

    def test_folders_named_by_label_are_taken_as_numbers(self):
        labels = label_map("imagenet")
        assert [labels[name] for name in ("0", "2", "10", "999")] == [0, 2, 10, 999]

    @pytest.mark.parametrize(
        "content",
        [
            b"dog\r\ncat\r\n\r\n", b"dog\rcat", b"dog \ncat\t\n", b"\xef\xbb\xbfdog\r\ncat\r\n",
            "dog\r\ncat".encode("utf-16"),
        ],
    )  # fmt: skip
    def test_a_list_gives_its_own_order_whatever_editor_wrote_it(self, tmp_path, content):
        (tmp_path / "classes.txt").write_bytes(content)
        assert label_map(str(tmp_path / "classes.txt")) == {"dog": 0, "cat": 1}

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"dog\ndog\n", "names dog twice"), (b"\n", "is empty"), (b"\xff\xff", "is not a text file")],
    )
    def test_a_wrong_list_is_one_sentence(self, tmp_path, content, message):
        (tmp_path / "classes.txt").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            label_map(str(tmp_path / "classes.txt"))

    def test_a_missing_list_is_named(self):
        with pytest.raises(FileNotFoundError, match=r"no list at /nowhere/x\.txt: dataset\.classes must be imagenet"):
            label_map("/nowhere/x.txt")


class TestCrop:
    @pytest.mark.parametrize("size", [(300, 224), (224, 224), (257, 391), (512, 260), (333, 500)])
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    def test_it_is_the_resize_and_centre_crop_of_torchvision(self, size, interpolation):
        image = Image.fromarray(noise(*size))
        filters = {"bilinear": T.InterpolationMode.BILINEAR, "bicubic": T.InterpolationMode.BICUBIC}
        expected = T.Compose([T.Resize(256, filters[interpolation]), T.CenterCrop(224)])(image)
        np.testing.assert_array_equal(Crop(224, 256, interpolation)(image), expected)

    @pytest.mark.parametrize("size", [(9, 12), (10, 8), (8, 8)])
    def test_without_resizing_it_only_cuts(self, size):
        image = Image.fromarray(noise(*size))
        np.testing.assert_array_equal(Crop(8)(image), T.CenterCrop(8)(image))

    def test_without_a_size_the_image_stays(self):
        np.testing.assert_array_equal(Crop()(Image.fromarray(noise(5, 6))), noise(5, 6))

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ((0,), "image_size must be at least 1, got 0"),
            ((8, -1), "resize must be at least 1"),
            ((None, 8), "image_size must be given"),
            ((9, 8), r"at most dataset\.resize \(8\), got 9"),
        ],
    )
    def test_sizes_that_cannot_be_are_refused(self, values, message):
        with pytest.raises(ValueError, match=message):
            Crop(*values)

    def test_an_image_that_is_too_small_is_named_with_the_remedy(self, tmp_path):
        save(tmp_path / "x.png", size=(20, 7))
        with pytest.raises(ValueError, match=r"x\.png has 20x7 pixels, too few .* of 8: set dataset\.resize"):
            read_image(tmp_path / "x.png", Crop(8))


class TestFinding:
    def test_listing_order_hidden_files_and_foreign_folders_do_not_matter(self, tmp_path, monkeypatch):
        for name in ("b/2.png", "b/10.JPEG", "a/x.jpg", "foreign/y.png", ".ipynb_checkpoints/z.png"):
            save(tmp_path / name)
        (tmp_path / "a" / "._x.jpg").write_bytes(b"a resource fork")
        (tmp_path / "a" / "notes.txt").write_text("no image")
        (tmp_path / "c").mkdir()
        real = os.scandir
        for order in (sorted, lambda entries, key: sorted(entries, key=key, reverse=True)):

            class Scanned(list):
                def __init__(self, folder, order=order):
                    with real(folder) as entries:
                        super().__init__(order(entries, key=lambda entry: entry.name))

                def __enter__(self):
                    return self

                def __exit__(self, *_):
                    pass

            monkeypatch.setattr("os.scandir", Scanned)
            found = find_images(tmp_path, {"a", "b", "c"})
            assert found.images == {"a": ["x.jpg"], "b": ["10.JPEG", "2.png"]}
            assert found.left_out == {".txt": 1, "foreign/": 1}

    def test_a_folder_without_images_is_refused_rather_than_skipped(self, tmp_path):
        save(tmp_path / "b" / "x.png")
        (tmp_path / "a").mkdir()
        with pytest.raises(ValueError, match=r"/a holds no images .* dataset\.classes"):
            open_folder(tmp_path, None, Crop())

    def test_labels_are_those_of_the_names(self, tmp_path):
        for i, name in enumerate(("n01443537/x.png", "n01440764/x.png", "n99999999/x.png")):
            save(tmp_path / name, pixels=i)
        images = open_folder(tmp_path, "imagenet", Crop())
        assert images.labels.tolist() == [0, 1]
        assert [images[i][0, 0, 0] for i in range(2)] == [1, 0]

    def test_a_folder_of_none_of_the_classes_is_refused(self, tmp_path):
        save(tmp_path / "cat" / "x.png")
        with pytest.raises(ValueError, match="no class folders of the given names"):
            open_folder(tmp_path, "imagenet", Crop())


class TestAListThatDoesNotFit:
    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("apple", "birch", "cobalt"):
            save(tmp_path / "day" / name / "x.png")
        return tmp_path / "day"

    def opened(self, folder, *names):
        (folder.parent / "classes.txt").write_text("\n".join(names))
        return open_folder(folder, str(folder.parent / "classes.txt"), Crop())

    def test_a_misspelt_class_names_the_folder_that_is_meant(self, folder):
        message = r"day has no folder for the class 'aple' of dataset\.classes; did you mean its folder 'apple'\?"
        with pytest.raises(ValueError, match=message):
            self.opened(folder, "cobalt", "aple", "birch")

    def test_a_class_that_resembles_no_folder_names_those_that_are_not_listed(self, folder):
        with pytest.raises(ValueError, match=r"class 'zebra' .*; the list lacks its folders cobalt"):
            self.opened(folder, "zebra", "apple", "birch")

    def test_other_folders_are_left_out_if_every_class_has_one(self, folder):
        images = self.opened(folder, "cobalt", "apple")
        assert (images.labels.tolist(), images.left_out) == ([1, 0], {"birch/": 1})

    def test_a_class_may_have_an_empty_folder_or_be_missing_from_a_complete_list(self, folder):
        assert self.opened(folder, "zebra", "cobalt", "birch", "apple").labels.tolist() == [3, 2, 1]
        (folder / "zebra").mkdir()
        assert self.opened(folder, "zebra", "cobalt").labels.tolist() == [1]

    def test_image_folder_looks_at_every_domain_and_at_the_source(self, folder):
        save(folder.parent / "night" / "apple" / "x.png")
        save(folder.parent / "night" / "bircj" / "x.png")
        (folder.parent / "classes.txt").write_text("apple\nbirch\ncobalt")
        classes = str(folder.parent / "classes.txt")
        for roles in ({}, {"source_images": str(folder.parent / "night")}):
            with pytest.raises(ValueError, match=r"night has no folder for the class 'birch' .*'bircj'"):
                image_folder(root=str(folder.parent), classes=classes, image_size=None, resize=None, **roles)


class TestWhatIsLeftOut:
    def test_every_file_that_is_not_read_is_counted_in_the_result(self, tmp_path):
        for name in ("day/a/1.png", "day/b/2.png", "night/a/3.png", "night/b/4.png"):
            save(tmp_path / name)
        for name in ("day/a/5.heic", "night/b/6.HEIC", "night/b/7.txt", "day/a/Thumbs.db", "day/a/.hidden"):
            (tmp_path / name).write_bytes(b"x")
        save(tmp_path / "day" / "loose.png")
        save(tmp_path / "day" / "a" / "deeper" / "8.png")
        data = image_folder(root=str(tmp_path), image_size=None, resize=None)
        expected = {".heic": 2, ".txt": 1, "/": 1, "images beside the folders": 1}
        assert data.describe()["left_out"] == expected
        assert data.describe()["num_images"] == {"day": 2, "night": 2}
        clean = corrupted(images=str(tmp_path / "day"), source_images=str(tmp_path / "night"), domains=["clean"])
        assert clean.describe()["left_out"] == {".heic": 1, "/": 1, "images beside the folders": 1}
        assert clean.describe()["left_out_of_source"] == {".heic": 1, ".txt": 1}

    def test_nothing_is_said_where_all_is_read(self, tmp_path):
        for suffix in ("tif", "tiff", "gif", "jpe", "jfif", "pgm"):
            save(tmp_path / "day" / "a" / f"{suffix}.{suffix}")
        data = image_folder(root=str(tmp_path), image_size=None, resize=None)
        assert data.describe()["num_images"] == {"day": 6}
        assert "left_out" not in data.describe()


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path):
        big = Image.fromarray(noise(64, 64))
        (tmp_path / "a").mkdir()
        for suffix in ("jpg", "png", "webp"):
            big.save(tmp_path / "a" / f"whole.{suffix}")
            whole = (tmp_path / "a" / f"whole.{suffix}").read_bytes()
            (tmp_path / "a" / f"cut.{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
        (tmp_path / "a" / "padded.jpg").write_bytes((tmp_path / "a" / "whole.jpg").read_bytes() + b"\0" * 16)
        (tmp_path / "a" / "empty.jpg").write_bytes(b"")
        (tmp_path / "a" / "page.jpg").write_bytes(b"<!DOCTYPE html><html></html>")
        return tmp_path

    def test_only_whole_files_are_whole(self, folder):
        found = {path.name for path in (folder / "a").iterdir() if is_whole(path)}
        assert found == {"whole.jpg", "whole.png", "whole.webp", "padded.jpg"}

    @pytest.mark.parametrize("name", ["cut.jpg", "cut.png", "cut.webp", "empty.jpg", "page.jpg"])
    def test_a_damaged_image_is_one_sentence_that_names_it(self, folder, name):
        with pytest.raises(ValueError, match=rf"^{folder}/a/{name} is not a readable image: remove or replace it$"):
            read_image(folder / "a" / name, Crop())

    def test_damaged_images_are_left_out_and_named(self, folder):
        images = open_folder(folder, None, Crop())
        intact, names = split_damaged(images)
        assert names == ["a/cut.jpg", "a/cut.png", "a/cut.webp", "a/empty.jpg", "a/page.jpg"]
        assert [images.name(i) for i in intact] == [
            "a/padded.jpg", "a/whole.jpg", "a/whole.png", "a/whole.webp",
        ]  # fmt: skip
        assert len(images.rows(intact).labels) == 4

    def test_a_folder_of_damaged_images_is_refused(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "x.jpg").write_bytes(b"")
        with pytest.raises(ValueError, match="none of the 1 images"):
            split_damaged(open_folder(tmp_path, None, Crop()))


def test_names_that_are_no_text_are_kept(tmp_path):
    name = os.fsdecode(b"\xff.png")
    save(tmp_path / "a" / name, pixels=9)
    images = open_folder(tmp_path, None, Crop())
    assert (images.name(0), images[0][0, 0, 0]) == (f"a/{name}", 9)
