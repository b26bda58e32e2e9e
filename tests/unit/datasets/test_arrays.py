"""Reading a user's own images: arrays and folders, and one sentence for each possible mistake."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tta_bench.datasets.base import digest
from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.files.arrays import open_images

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def opened(path, labels=None, *, split="test", image_size=None):
    return open_images(path, labels, split=split, image_size=image_size)


def assert_holds(images, expected, labels):
    assert len(images) == len(expected)
    assert images.labels.dtype == np.int64
    np.testing.assert_array_equal(images.labels, labels)
    for i, image in enumerate(expected):
        assert images[i].flags.c_contiguous
        np.testing.assert_array_equal(images[i], image)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
class TestArrays:
    def stored(self, layout):
        return IMAGES if layout == "NHWC" else IMAGES.transpose(0, 3, 1, 2)

    def test_a_pair_of_npy_files(self, tmp_path, layout):
        np.save(tmp_path / "x.npy", self.stored(layout))
        np.save(tmp_path / "y.npy", LABELS.astype(np.uint8))
        assert_holds(opened(tmp_path / "x.npy", tmp_path / "y.npy"), IMAGES, LABELS)

    def test_a_split_of_an_npz_file(self, tmp_path, layout):
        arrays = {"test_images": self.stored(layout), "test_labels": LABELS}
        np.savez(tmp_path / "x.npz", **arrays, val_images=self.stored(layout)[:2], val_labels=LABELS[:2])
        assert_holds(opened(tmp_path / "x.npz"), IMAGES, LABELS)
        assert_holds(opened(str(tmp_path / "x.npz"), split="val"), IMAGES[:2], LABELS[:2])

    def test_an_npz_file_without_splits(self, tmp_path, layout):
        np.savez(tmp_path / "x.npz", images=self.stored(layout), labels=LABELS)
        assert_holds(opened(tmp_path / "x.npz"), IMAGES, LABELS)


def save(path, images=IMAGES, labels=LABELS):
    np.savez(path, images=images, labels=labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": IMAGES.astype(np.float32)}, "must be uint8 .* got float32"),
        ({"images": IMAGES[..., :1]}, r"shape \(6, 8, 8, 1\)"),
        ({"images": IMAGES[0]}, r"shape \(8, 8, 3\)"),
        ({"labels": LABELS[:4]}, "6 images but 4 labels"),
        ({"labels": LABELS.astype(np.float32)}, "labels must be non-negative integers .* got float32"),
        ({"labels": LABELS - 1}, "labels must be non-negative integers of shape"),
        ({"labels": np.eye(3, dtype=int)[LABELS]}, r"shape \(6, 3\)"),
        ({"images": np.array([None] * 6)}, r"x\.npz"),
    ],
)
def test_wrong_arrays_are_one_sentence(tmp_path, change, message):
    save(tmp_path / "x.npz", **change)
    with pytest.raises(ValueError, match=message) as caught:
        opened(tmp_path / "x.npz")
    assert "\n" not in str(caught.value)
    assert "x.npz" in str(caught.value)


def test_a_missing_split_names_what_is_there(tmp_path):
    np.savez(tmp_path / "x.npz", train_images=IMAGES, train_labels=LABELS)
    with pytest.raises(ValueError, match=r"x\.npz.* neither test_images .*; it has: train_images, train_labels$"):
        opened(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npz", b""),
        ("x.npz", b"<html>404</html>"),
        ("x.npz", b"PK\x03\x04 cut off"),
        ("x.npy", b""),
        ("x.npy", b"<html>"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "y.npy", LABELS)
    with pytest.raises(ValueError, match=rf"^cannot read .*/{name}"):
        opened(tmp_path / name, tmp_path / "y.npy" if name == "x.npy" else None)


def test_images_without_labels_name_the_remedy(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    with pytest.raises(ValueError, match=r"set dataset\.labels"):
        opened(tmp_path / "x.npy")


@pytest.mark.parametrize("missing", ["images", "labels"])
def test_a_missing_file_is_named(tmp_path, missing):
    paths = {"images": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}
    for name, path in paths.items():
        if name != missing:
            np.save(path, IMAGES if name == "images" else LABELS)
    with pytest.raises(FileNotFoundError, match=rf"^dataset\.{missing}={paths[missing]} does not exist$"):
        opened(paths["images"], paths["labels"])


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "images.tar").write_bytes(b"x")
    with pytest.raises(ValueError, match="must be a folder of class folders"):
        opened(tmp_path / "images.tar")


def test_an_image_size_for_arrays_is_refused(tmp_path):
    save(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"dataset\.image_size applies only to folders"):
        opened(tmp_path / "x.npz", image_size=4)


@pytest.fixture
def folder(tmp_path):
    """Class folders in another order than their names, with files that are not images."""
    root = tmp_path / "images"
    for name, pixels in (("b/2.png", 2), ("b/10.png", 10), ("a/x.png", 3), (".hidden/h.png", 4)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (pixels, 0, 0)).save(root / name)
    (root / "a" / ".x.png").write_bytes(b"a resource fork")
    (root / "a" / "notes.txt").write_text("no image")
    (root / "list.txt").write_text("no folder")
    return root


class TestAFolder:
    def test_is_read_in_the_order_of_names_without_hidden_and_foreign_files(self, folder):
        images = opened(folder)
        assert [images[i][0, 0, 0] for i in range(len(images))] == [3, 10, 2]
        assert images.labels.tolist() == [0, 1, 1]
        assert images.describe() == "images (2 classes, 3 images, as they are)"

    def test_grey_and_transparent_images_become_rgb(self, folder):
        Image.new("L", (8, 8), 7).save(folder / "a" / "grey.png")
        Image.new("RGBA", (8, 8), (9, 9, 9, 0)).save(folder / "a" / "clear.png")
        images = opened(folder)
        assert [images[i].shape for i in range(2)] == [(8, 8, 3)] * 2
        assert [images[i][0, 0].tolist() for i in range(2)] == [[9, 9, 9], [7, 7, 7]]

    @pytest.mark.parametrize("size", [(40, 64), (64, 40), (16, 16), (7, 5)])
    def test_images_are_resized_and_cut_to_a_square(self, folder, size):
        Image.new("RGB", size).save(folder / "a" / "0.png")
        assert opened(folder, image_size=16)[0].shape == (16, 16, 3)

    def test_the_centre_is_cut_out_after_resizing_to_eight_sevenths(self, folder):
        wide = np.zeros((16, 48, 3), dtype=np.uint8)
        wide[:, 16:32] = 200
        Image.fromarray(wide).save(folder / "a" / "0.png")
        cut = opened(folder, image_size=14)[0]  # 48x16 stays 48x16: 14 / 0.875 = 16
        np.testing.assert_array_equal(cut, wide[1:15, 17:31])

    def test_a_truncated_image_is_named(self, folder):
        path = folder / "a" / "x.png"
        Image.fromarray(IMAGES[0].repeat(8, 0).repeat(8, 1)).save(path)
        path.write_bytes(path.read_bytes()[:120])
        with pytest.raises(ValueError, match=f"^{path} is not a readable image: remove or replace it$"):
            opened(folder)[0]

    @pytest.mark.parametrize("what", ["no class folders", "no images"])
    def test_an_empty_one_is_refused(self, tmp_path, what):
        (tmp_path / "empty" / "class").mkdir(parents=True)
        with pytest.raises(ValueError, match=what):
            opened(tmp_path / "empty" / ("class" if what == "no class folders" else ""))


def write_cifar(path, labels, header=1):
    """Records as published; the pixel at (0, 0) is the row, twice the row and three times the row."""
    records = np.zeros((len(labels), header + 3072), dtype=np.uint8)
    records[:, header - 1] = labels
    records[:, header::1024] = np.arange(len(labels))[:, None] * [1, 2, 3]
    path.write_bytes(records.tobytes())


class TestCifarBinary:
    @pytest.fixture
    def cifar10(self, tmp_path):
        folder = tmp_path / "cifar-10-batches-bin"
        folder.mkdir()
        for batch in range(1, 6):
            write_cifar(folder / f"data_batch_{batch}.bin", [batch, 9 - batch])
        write_cifar(folder / "test_batch.bin", [7, 8, 9])
        return folder

    def test_the_two_splits_of_cifar10(self, cifar10):
        images = opened(cifar10)
        assert images.labels.tolist() == [7, 8, 9]
        assert images[2].shape == (32, 32, 3)
        assert images[2][0, 0].tolist() == [2, 4, 6]
        assert images[2][1:].max() == 0
        assert opened(cifar10, split="train").labels.tolist() == [1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
        assert opened(cifar10, split="source").labels.tolist() == opened(cifar10, split="train").labels.tolist()

    def test_cifar100_has_the_fine_labels(self, tmp_path):
        write_cifar(tmp_path / "test.bin", [42, 99], header=2)
        images = opened(tmp_path)
        assert images.labels.tolist() == [42, 99]
        assert images[1][0, 0].tolist() == [1, 2, 3]

    def test_its_training_images_are_the_source(self, cifar10):
        data = corrupted(images=str(cifar10), domains=["clean"])
        assert (len(data.labels("clean")), len(data.source_images())) == (3, 10)

    @pytest.mark.parametrize(
        ("change", "split", "message"),
        [
            (lambda file: file.write_bytes(file.read_bytes()[:-1]), "test", r"test_batch\.bin is truncated"),
            (lambda file: file.write_bytes(b""), "test", r"test_batch\.bin is truncated"),
            (lambda file: file.unlink(), "test", r"holds no test_batch\.bin or test\.bin"),
            (lambda file: None, "validation", "not 'validation'"),
        ],
    )
    def test_what_is_wrong_is_one_sentence(self, cifar10, change, split, message):
        change(cifar10 / "test_batch.bin")
        with pytest.raises(ValueError, match=message):
            opened(cifar10, split=split)

    def test_the_pickles_of_the_python_version_are_not_opened(self, tmp_path):
        (tmp_path / "data_batch_1").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
        with pytest.raises(ValueError, match=r"holds Python pickles, .* use CIFAR's binary version"):
            opened(tmp_path)


def test_classes_give_a_folder_its_labels(folder, tmp_path):
    (tmp_path / "classes.txt").write_text("x\nb\n")
    (folder / "x").mkdir()  # a class without images here; without its folder the list might be misspelt
    images = open_images(folder, classes=str(tmp_path / "classes.txt"))
    assert images.labels.tolist() == [1, 1]
    data = corrupted(images=str(folder), classes=str(tmp_path / "classes.txt"), domains=["clean"])
    assert data.labels("clean").tolist() == [1, 1]


def test_classes_for_arrays_are_refused(tmp_path):
    save(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"dataset\.classes applies only to folders"):
        open_images(tmp_path / "x.npz", classes="imagenet")


def test_a_digest_changes_with_labels_and_with_images(tmp_path):
    def digest_of(**change):
        save(tmp_path / "x.npz", **change)
        return digest(opened(tmp_path / "x.npz"))

    other = IMAGES.copy()
    other[5, 0, 0, 0] ^= 1
    digests = [digest_of(), digest_of(), digest_of(images=other), digest_of(labels=LABELS[::-1])]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert len(digests[0]) == 12


def test_source_images_are_those_of_the_same_npz_file(tmp_path):
    np.savez(
        tmp_path / "x.npz", test_images=IMAGES[:2], test_labels=LABELS[:2], source_images=IMAGES, source_labels=LABELS
    )
    assert_holds(corrupted(images=str(tmp_path / "x.npz")).source_images(), IMAGES, LABELS)


def test_without_source_images_the_remedy_is_named(tmp_path):
    save(tmp_path / "x.npz")
    data = corrupted(images=str(tmp_path / "x.npz"))
    with pytest.raises(ValueError, match=r"set dataset\.source_images"):
        data.source_images()


def test_source_images_may_lie_elsewhere(tmp_path, folder):
    save(tmp_path / "x.npz")
    data = corrupted(images=str(tmp_path / "x.npz"), source_images=str(folder))
    assert data.source_images().labels.tolist() == [0, 1, 1]
