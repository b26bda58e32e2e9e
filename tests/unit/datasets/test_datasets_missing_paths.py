"""A path that does not exist is named with its key, whatever data set it is for."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from tta_bench.config.registry import DATASETS
from tta_bench.files import existing

REQUIRED = {
    (name, key)
    for name, make in DATASETS.items()
    for key, parameter in inspect.signature(make).parameters.items()
    if key in ("root", "images") and parameter.default is parameter.empty
}


def refused(name, **paths):
    make = DATASETS[name]
    needed = [key for key, p in inspect.signature(make).parameters.items() if p.default is p.empty]
    with pytest.raises(FileNotFoundError) as caught:
        make(**{**dict.fromkeys(needed, "/nowhere"), **{key: str(path) for key, path in paths.items()}})
    return str(caught.value)


@pytest.mark.parametrize(("name", "key"), sorted(REQUIRED))
def test_the_data(name, key):
    assert refused(name) == f"dataset.{key}=/nowhere does not exist"


def test_all_data_sets_on_disk_are_among_those():
    assert len(REQUIRED) == 9


@pytest.mark.parametrize("key", ["labels", "source_images", "source_labels", "frost_folder"])
def test_what_else_is_given(tmp_path, key):
    np.savez(tmp_path / "x.npz", test_images=np.zeros((2, 8, 8, 3), np.uint8), test_labels=np.arange(2))
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 3), np.uint8))
    source = {"source_images": tmp_path / "x.npy"} if key == "source_labels" else {}
    told = refused("corrupted", **{"images": tmp_path / "x.npz", **source, key: tmp_path / "nowhere"})
    assert told == f"dataset.{key}={tmp_path}/nowhere does not exist"


def test_a_folder_of_source_images(tmp_path):
    (tmp_path / "photo").mkdir()
    told = refused("image_folder", root=tmp_path, source_images=tmp_path / "nowhere")
    assert told == f"dataset.source_images={tmp_path}/nowhere does not exist"


def test_a_relative_path_is_named_with_the_folder_it_starts_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"^dataset\.root=imagenet-c does not exist in {tmp_path}$"):
        existing("dataset.root", "imagenet-c")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_is_not_a_folder(tmp_path, kind):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    other = "file" if kind == "folder" else "folder"
    assert existing("key", tmp_path / kind, kind) == tmp_path / kind
    with pytest.raises(ValueError, match=rf"^key={tmp_path}/{other} must be a {kind}$"):
        existing("key", tmp_path / other, kind)


def test_the_home_folder_has_a_short_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    assert existing("dataset.root", "~/data") == tmp_path / "data"
