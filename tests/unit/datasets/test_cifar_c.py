"""CIFAR-C in its published layout: 50,000 rows per corruption, five severities one after the other."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tta_bench.datasets.classification.cifar_c import cifar10_c, cifar100_c
from tta_bench.datasets.corruptions import COMMON, VALIDATION

SHAPE = (50_000, 32, 32, 3)


def write(path, shape=SHAPE, dtype=np.uint8):
    """A file of the right size that is mostly a hole, so that it costs no disk."""
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The pixel (0, 0) of the first rows of each severity says which file, severity and row it is."""
    folder = tmp_path_factory.mktemp("CIFAR-10-C")
    for number, name in enumerate((*COMMON, *VALIDATION)):
        file = write(folder / f"{name}.npy")
        for severity in range(1, 6):
            for row in (0, 1, 9_999):
                file[(severity - 1) * 10_000 + row, 0, 0] = (number, severity, row % 251)
    np.save(folder / "labels.npy", np.tile(np.arange(10_000) * 7 % 10, 5).astype(np.uint8))
    return folder


@pytest.mark.parametrize(("domains", "names"), [("common", COMMON), ("validation", VALIDATION), (["fog"], ("fog",))])
def test_domains_are_the_files_of_the_corruptions(root, domains, names):
    data = cifar10_c(root=str(root), domains=domains)
    assert (data.name, data.domains) == ("cifar10_c", names)
    everything = [*COMMON, *VALIDATION]
    assert [data.load(name, 0)[0, 0, 0] for name in names] == [everything.index(name) for name in names]


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_its_10000_rows(root, severity):
    data = cifar10_c(root=str(root), domains=["snow", f"fog/{severity}", "fog"], severity=severity)
    for domain in data.domains:
        rows = [data.load(domain, row)[0, 0, 1:].tolist() for row in (0, 1, 9_999)]
        assert rows == [[severity, row % 251] for row in (0, 1, 9_999)]
        np.testing.assert_array_equal(data.labels(domain), np.arange(10_000) * 7 % 10)
    np.testing.assert_array_equal(data.load("fog", 1), data.load(f"fog/{severity}", 1))
    assert data.describe()["severity"] == severity


def test_images_are_copies_of_a_memory_map(root):
    data = cifar10_c(root=str(root), domains=["fog"])
    assert isinstance(data.images["fog"].pixels, np.memmap)
    image = data.load("fog", 0)
    assert (image.shape, image.dtype, image.flags.writeable, type(image)) == ((32, 32, 3), np.uint8, True, np.ndarray)
    assert data.labels("fog").dtype == np.int64


def test_fewer_images_are_the_first_ones(root):
    data = cifar10_c(root=str(root), domains=["fog"], num_images=2)
    assert data.labels("fog").tolist() == [0, 7]
    assert data.load("fog", 1)[0, 0, 2] == 1
    for wrong in (0, 10_001):
        with pytest.raises(ValueError, match=rf"num_images must be in 1\.\.10000.* got {wrong}"):
            cifar10_c(root=str(root), domains=["fog"], num_images=wrong)


def test_a_digest_changes_with_the_images(root, tmp_path):
    for name in ("fog.npy", "labels.npy"):
        (tmp_path / name).symlink_to(root / name)
    same = [cifar10_c(root=str(folder), domains=["fog"]).describe() for folder in (root, tmp_path)]
    assert same[0] == same[1]
    assert cifar10_c(root=str(root), domains=["fog/4"]).describe()["digest"] != same[0]["digest"]


@pytest.mark.parametrize("missing", ["fog", "labels"])
def test_a_missing_file_is_named_with_those_that_are_there(root, tmp_path, missing):
    for name in ("fog", "snow", "labels"):
        if name != missing:
            (tmp_path / f"{name}.npy").symlink_to(root / f"{name}.npy")
    there = ", ".join(sorted({"fog", "snow", "labels"} - {missing}))
    with pytest.raises(FileNotFoundError, match=rf"^{tmp_path} lacks {missing}\.npy; it holds: {there}$"):
        cifar10_c(root=str(tmp_path), domains=["snow", "fog"])


def test_a_missing_folder_is_named():
    with pytest.raises(FileNotFoundError, match=r"^dataset\.root=/nowhere does not exist$"):
        cifar100_c(root="/nowhere")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((10_000, 32, 32, 3), np.uint8),
        ((50_000, 3, 32, 32), np.uint8),
        (SHAPE, np.float32),
        (SHAPE, np.int16),
    ],
)
def test_images_of_another_shape_or_type_are_one_sentence(root, tmp_path, shape, dtype):
    (tmp_path / "labels.npy").symlink_to(root / "labels.npy")
    write(tmp_path / "fog.npy", shape, dtype)
    sentence = f"fog.npy should hold uint8 of shape {SHAPE}, to match labels.npy, but holds {np.dtype(dtype)} {shape}"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        cifar10_c(root=str(tmp_path), domains=["fog"])


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.arange(10_000) // 1000, "holds 10000 labels, which are not the same labels five times"),
        (np.arange(12) % 10, "holds 12 labels, which are not the same labels five times"),
        (np.repeat(np.arange(10), 5)[:, None], "should hold a 1-D array of integers, but holds int64 (50, 1)"),
        (np.zeros(50), "should hold a 1-D array of integers, but holds float64 (50,)"),
        (np.zeros(0, int), "should hold a 1-D array of integers, but holds int64 (0,)"),
        (np.tile([3, 10], 5), "holds 2 classes from 3 to 10, but 10 classes from 0 to 9 are expected"),
        (np.tile([-1, 3], 5), "holds 2 classes from -1 to 3, but 10 classes from 0 to 9 are expected"),
    ],
)
def test_labels_that_cannot_be_are_one_sentence(tmp_path, labels, sentence):
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(ValueError, match=re.escape(f"labels.npy {sentence}")):
        cifar10_c(root=str(tmp_path), domains=["fog"])


def test_a_subset_has_smaller_blocks_and_may_lack_classes(tmp_path):
    np.save(tmp_path / "labels.npy", np.tile([7, 0, 7], 5))
    pixels = np.zeros((15, 32, 32, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(15)
    np.save(tmp_path / "fog.npy", pixels)
    data = cifar10_c(root=str(tmp_path), domains=["fog/1", "fog/4", "fog"])
    first = [[int(data.load(domain, row)[0, 0, 0]) for row in range(3)] for domain in data.domains]
    assert first == [[0, 1, 2], [9, 10, 11], [12, 13, 14]]
    assert data.labels("fog").tolist() == [7, 0, 7]
    assert len(cifar10_c(root=str(tmp_path), domains=["fog"], num_images=2).labels("fog")) == 2
    with pytest.raises(ValueError, match=r"num_images must be in 1\.\.3.* got 4"):
        cifar10_c(root=str(tmp_path), domains=["fog"], num_images=4)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x93NUMPY\x01\x00v\x00{'descr': '|u1'"])
def test_an_unreadable_file_is_named(root, tmp_path, content):
    (tmp_path / "labels.npy").symlink_to(root / "labels.npy")
    (tmp_path / "fog.npy").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^cannot read {tmp_path}/fog\.npy"):
        cifar10_c(root=str(tmp_path), domains=["fog"])


def test_labels_of_the_other_cifar_are_recognised(root, tmp_path):
    with pytest.raises(ValueError, match="holds 10 classes from 0 to 9, but 100 classes from 0 to 99 are expected"):
        cifar100_c(root=str(root))
    (tmp_path / "fog.npy").symlink_to(root / "fog.npy")
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10_000) % 100, 5))
    assert cifar100_c(root=str(tmp_path), domains=["fog"]).labels("fog")[99] == 99
    with pytest.raises(ValueError, match="holds 100 classes"):
        cifar10_c(root=str(tmp_path), domains=["fog"])


def test_source_images_are_optional(root, tmp_path):
    with pytest.raises(ValueError, match=r"set dataset\.source_images"):
        cifar10_c(root=str(root), domains=["fog"]).source_images()
    images = np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3)
    np.savez(tmp_path / "clean.npz", source_images=images, source_labels=[3, 4])
    source = cifar10_c(root=str(root), domains=["fog"], source_images=str(tmp_path / "clean.npz")).source_images()
    assert source.labels.tolist() == [3, 4]
    np.testing.assert_array_equal(source[1], images[1])
