"""Data sets of files on the command line: results, and what they say about the data."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from tta_bench.cli.app import app
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.prepare.pack import pack

WORDS = ["run", "setting=csc", "setting.batch_size=8", "trainer=cpu", "logger=off"]


@pytest.fixture
def root(tmp_path):
    """Shapes in two domains of class folders, the second one darker, and some of the source."""
    for domain, dim, first in (("day", 1, 0), ("dusk", 3, 20), ("source", 1, 40)):
        for i in range(first, first + 20):
            file = tmp_path / "images" / domain / str(label(i)) / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(render("test", i, 64) // dim).save(file)
    return tmp_path / "images"


def words_for(root):
    cut = ["dataset.image_size=64", "dataset.resize=null", f"dataset.source_images={root}/source"]
    return ["dataset=image_folder", f"dataset.root={root}", *cut]


def result_of(*words, home, status=0):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, [*WORDS, *words, f"output={home}/runs", f"cache_dir={home}/cache"]
    )
    assert done.exit_code == status, done.output
    (file,) = home.glob("runs/*/*/*/*/result.json")
    return json.loads(file.read_text())


@pytest.mark.parametrize("method", [["method=tent"], ["method=dpcore", "method.num_source=16", "method.steps_new=2"]])
def test_a_packed_data_set_gives_the_same_numbers(root, tmp_path, method):
    pack(image_folder(root=str(root), image_size=64, resize=None, source_images=f"{root}/source"),
         tmp_path / "pack", Console(file=io.StringIO()))  # fmt: skip
    files = result_of(*method, *words_for(root), home=tmp_path / "a")
    arrays = result_of(*method, "dataset=packed", f"dataset.root={tmp_path}/pack", home=tmp_path / "b")
    for key in ("domain_error", "stream_sha256", "coreset_size"):
        assert arrays[key] == files[key]
    assert list(files["domain_error"]) == ["day", "dusk"]
    assert arrays["data"]["packed_from"] == files["data"]


def test_damaged_images_fail_the_run_or_are_skipped_and_named(root, tmp_path):
    damaged = root / "dusk" / "5" / "25.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    words = ["method=source", *words_for(root)]
    skipped = result_of(*words, "dataset.on_bad_image=skip", home=tmp_path / "a")
    assert skipped["data"]["skipped_images"] == {"number": 1, "first": ["dusk/5/25.png"]}
    assert skipped["num_samples"] == {"day": 20, "dusk": 19}
    again = [*words, "dataset.on_bad_image=skip", "resume=never", f"output={tmp_path}/a/runs"]
    said = CliRunner().invoke(app, [*WORDS, *again]).output.replace("\n", "")
    assert "note: 1 damaged image is left out, first dusk/5/25.png" in said
    done = CliRunner().invoke(app, [*WORDS, *words, f"output={tmp_path}/b"])
    assert done.exit_code != 0
    assert "25.png is not a readable image" in done.output.replace("\n", "")


def test_small_images_are_enlarged_to_those_of_the_model(tmp_path):
    pixels = np.stack([render("test", i, 32) for i in range(16)])
    np.savez(tmp_path / "x.npz", images=pixels, labels=[label(i) for i in range(16)])
    words = ["dataset=corrupted", f"dataset.images={tmp_path}/x.npz", "dataset.domains=[clean]", "method=source"]
    result = result_of(*words, home=tmp_path)
    assert result["preprocess"]["image_size"] == 64
    assert result["mean_error"] < 50  # chance is 90


def test_larger_images_than_those_of_the_model_are_one_sentence(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 96, 96, 3), np.uint8), labels=[0, 1, 2, 3])
    words = ["dataset=corrupted", f"dataset.images={tmp_path}/x.npz", "dataset.domains=[clean]", "method=source"]
    result = result_of(*words, home=tmp_path, status=1)
    assert "images of 96x96 pixels do not fit a model of 64x64: set dataset.image_size=64" in result["error"]
