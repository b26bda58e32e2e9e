"""ImageNet-C in its published layout: labels from names, lists of images, and one sentence for what is missing."""

from __future__ import annotations

import hashlib
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from tta_bench.datasets.classification.imagenet_c import imagenet_c
from tta_bench.datasets.files.class_names import imagenet_classes

WNIDS = ("n01443537", "n02096051", "n15075141")  # labels 1, 191 and 999
LABELS = (1, 191, 999)


def grey(path, level, size=(16, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level,) * 3).save(path, quality=95)


@pytest.fixture
def root(tmp_path):
    """Three classes with two images each; the grey level says domain, class and image."""
    for d, domain in enumerate(("fog/5", "fog/3", "snow/5")):
        for c, wnid in enumerate(WNIDS):
            for i, number in enumerate((900, 1000)):
                grey(tmp_path / "ImageNet-C" / domain / wnid / f"ILSVRC2012_val_{number:08}.JPEG", 60 * d + 10 * c + i)
    return tmp_path / "ImageNet-C"


@pytest.fixture
def three(tmp_path):
    """A list of the three classes, for a model that knows no other."""
    (tmp_path / "three.txt").write_text("\n".join(WNIDS))
    return str(tmp_path / "three.txt")


@pytest.fixture
def subset(tmp_path):
    """Lines as in the published list: in no order, and with line ends of another system."""
    lines = [f"{WNIDS[2]}/ILSVRC2012_val_00001000.JPEG", f"{WNIDS[0]}/ILSVRC2012_val_00000900.JPEG"]
    (tmp_path / "list.txt").write_bytes("\r\n".join(lines).encode())
    return str(tmp_path / "list.txt")


def opened(root, **settings):
    return imagenet_c(root=str(root), **{"domains": ["fog", "snow"], "image_size": 16, **settings})


def levels(data, domain="fog"):
    return [data.load(domain, i)[0, 0, 0] for i in range(len(data.labels(domain)))]


def test_images_come_in_the_order_of_their_names(root, three):
    data = opened(root, classes=three)
    assert (data.name, data.domains) == ("imagenet_c", ("fog", "snow"))
    assert [levels(data), levels(data, "snow")] == [[0, 1, 10, 11, 20, 21], [120, 121, 130, 131, 140, 141]]
    assert data.labels("fog").tolist() == [0, 0, 1, 1, 2, 2]
    assert opened(root, classes=three, domains=["fog/3"]).load("fog/3", 0)[0, 0, 0] == 60
    assert opened(root, classes=three, domains=["fog"], severity=3).load("fog", 0)[0, 0, 0] == 60


def test_labels_are_those_of_the_1000_classes(root, subset):
    data = opened(root, subset=subset)
    assert data.labels("fog").tolist() == [LABELS[0], LABELS[2]]
    assert levels(data) == [0, 21]


def test_all_of_the_1000_classes_must_be_there(root):
    with pytest.raises(ValueError, match=r"fog/5 lacks 997 of 1000 classes: n01440764, n01484850, n01491361, \.\.\.; "):
        opened(root)
    for wnid in set(imagenet_classes()) - set(WNIDS):
        (root / "fog" / "5" / wnid).mkdir()
        shutil.copy(root / "fog" / "5" / WNIDS[0] / "ILSVRC2012_val_00000900.JPEG", root / "fog" / "5" / wnid)
    labels = opened(root, domains=["fog"]).labels("fog")
    assert labels.tolist() == sorted([*range(1000), *LABELS])


def test_an_empty_class_folder_is_a_missing_class(root, three):
    for file in (root / "snow" / "5" / WNIDS[1]).iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=f"snow/5 lacks 1 of 3 classes: {WNIDS[1]}; complete it"):
        opened(root, classes=three)


def test_a_missing_corruption_is_named_with_what_is_there(root, three):
    (root / "noise.tar").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"lacks gaussian_noise/5; it holds: fog, snow, noise\.tar$"):
        opened(root, classes=three, domains="common")
    with pytest.raises(FileNotFoundError, match=r"snow lacks severity 2; it holds: 5$"):
        opened(root, classes=three, domains=["snow/2"])
    with pytest.raises(FileNotFoundError, match=r"^dataset\.root=/nowhere does not exist$"):
        opened("/nowhere", classes=three)


class TestLists:
    def test_a_result_names_the_list_and_hashes_its_lines(self, root, subset, tmp_path):
        lines = sorted((tmp_path / "list.txt").read_text().split())
        told = opened(root, subset=subset).describe()["subset"]
        assert told == {
            "name": "list.txt",
            "images": 2,
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        }
        (tmp_path / "list.txt").write_text("\n".join(lines[::-1]) + "\n\n")
        assert opened(root, subset=subset).describe()["subset"] == told

    def test_the_published_list_is_read_from_a_package_that_is_not_imported(self, root, subset, tmp_path, monkeypatch):
        package = tmp_path / "site" / "robustbench"
        (package / "helper_files").mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError('it needs what is not installed')")
        shutil.copy(subset, package / "helper_files" / "imagenet_test_image_ids.txt")
        monkeypatch.syspath_prepend(tmp_path / "site")
        data = opened(root, subset="robustbench")
        assert "robustbench" not in sys.modules
        assert data.describe()["subset"]["name"] == "robustbench"
        assert levels(data) == [0, 21]

    def test_without_the_package_the_remedy_is_named(self, root, monkeypatch):
        monkeypatch.setattr("tta_bench.datasets.classification.imagenet_c.find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"pip install --no-deps robustbench, or set dataset\.subset"):
            opened(root, subset="robustbench")

    def test_a_listed_image_that_is_missing_is_named(self, root, subset):
        (root / "snow" / "5" / WNIDS[2] / "ILSVRC2012_val_00001000.JPEG").unlink()
        with pytest.raises(ValueError, match=rf"snow/5 lacks 1 of the 2 images listed, first {WNIDS[2]}/ILSVRC"):
            opened(root, subset=subset)

    @pytest.mark.parametrize("line", ["n99999999/x.JPEG", "ILSVRC2012_val_00000900.JPEG", "n01443537/", "../x.JPEG"])
    def test_a_line_that_does_not_name_an_image_is_reported(self, root, tmp_path, line):
        (tmp_path / "wrong.txt").write_text(line)
        with pytest.raises(ValueError, match=r"wrong\.txt holds '.*', which is not an image of a known class"):
            opened(root, subset=str(tmp_path / "wrong.txt"))


class TestCutting:
    @pytest.fixture
    def large(self, root):
        """One image whose centre of 224 pixels is white in a black frame of 16."""
        pixels = np.zeros((256, 256, 3), dtype=np.uint8)
        pixels[16:240, 16:240] = 255
        for file in root.rglob("*.JPEG"):
            Image.fromarray(pixels).save(file, quality=100)
        return root

    def test_the_centre_is_cut_out_by_default(self, large, three):
        data = imagenet_c(root=str(large), classes=three, domains=["fog"])
        assert data.load("fog", 0).shape == (224, 224, 3)
        assert data.load("fog", 0).min() > 240

    def test_resizing_before_is_a_switch_that_a_result_tells(self, large, three):
        data = imagenet_c(root=str(large), classes=three, domains=["fog"], resize=288)
        assert data.load("fog", 0)[0, 0, 0] > 240
        assert imagenet_c(root=str(large), classes=three, domains=["fog"], resize=224).load("fog", 0)[0, 0, 0] < 60
        keys = {"image_size": 224, "resize": 288, "interpolation": "bilinear"}
        assert keys.items() <= data.describe().items()

    def test_source_images_are_cut_in_the_same_way(self, large, three):
        data = opened(large, classes=three, image_size=64, resize=128, source_images=str(large / "fog" / "3"))
        np.testing.assert_array_equal(data.source_images()[0], data.load("fog", 0))
        assert data.source_images().labels.tolist() == [0, 0, 1, 1, 2, 2]


class TestDamage:
    @pytest.fixture
    def cut(self, root):
        file = root / "fog" / "5" / WNIDS[1] / "ILSVRC2012_val_00000900.JPEG"
        file.write_bytes(file.read_bytes()[:-40])
        return file

    def test_an_image_ends_the_stream_when_its_turn_comes(self, root, three, cut):
        data = opened(root, classes=three)
        assert data.load("fog", 1)[0, 0, 0] == 1
        with pytest.raises(ValueError, match=f"^{cut} is not a readable image"):
            data.load("fog", 2)

    def test_or_is_left_out_counted_and_named(self, root, three, cut):
        data = opened(root, classes=three, on_bad_image="skip")
        assert levels(data) == [0, 1, 11, 20, 21]
        assert data.labels("fog").tolist() == [0, 0, 1, 2, 2]
        assert len(data.labels("snow")) == 6
        told = data.describe()
        assert told["skipped_images"] == {"number": 1, "first": [f"fog/{WNIDS[1]}/{cut.name}"]}
        assert told["num_images"] == {"fog": 5, "snow": 6}

    def test_without_damage_none_is_counted(self, root, three):
        assert opened(root, classes=three, on_bad_image="skip").describe()["skipped_images"]["number"] == 0
        assert "skipped_images" not in opened(root, classes=three).describe()


def test_fewer_images_are_spread_over_the_classes(root, three):
    data = opened(root, classes=three, num_images=3)
    assert data.labels("fog").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"num_images must be in 1\.\.6, the number of images of fog; got 7"):
        opened(root, classes=three, num_images=7)


def test_a_digest_changes_with_an_image_and_with_a_label(root, three, tmp_path):
    before = opened(root, classes=three).describe()
    assert opened(root, classes=three).describe() == before
    (tmp_path / "three.txt").write_text("\n".join(WNIDS[::-1]))
    assert opened(root, classes=three).describe()["digest"] != before["digest"]
    (tmp_path / "three.txt").write_text("\n".join(WNIDS))
    grey(root / "snow" / "5" / WNIDS[2] / "ILSVRC2012_val_00001000.JPEG", 200)
    assert opened(root, classes=three).describe()["digest"] != before["digest"]
