"""The commands about data sets, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tta_bench.cli.app import app
from tta_bench.datasets.classification.packed import packed
from tta_bench.datasets.procedural.shapes import label, render


def typed(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["data", *map(str, words)])


@pytest.fixture
def images(tmp_path):
    for i in range(6):
        file = tmp_path / "images/day" / str(label(i)) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(render("test", i, 32)).save(file)
    return tmp_path / "images"


def test_list_names_what_download_takes():
    printed = typed("list").output
    assert [name for name in ("cifar10_c", "cifar100_c", "imagenet_c", "imagenet_r") if name not in printed] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["download", "cifar10c", "--folder", "x"], "there is no public data set 'cifar10c'; did you mean 'cifar10_c'"),
        (["pack", "dataset=image_folder", "--output", "x"], "dataset.root has no value"),
        (["pack", "dataset=imagefolder", "--output", "x"], "there is no dataset 'imagefolder'"),
        (["corrupt", "--input", "/nowhere", "--output", "x", "--family", "tiny"], "--input=/nowhere does not exist"),
        (["corrupt", "--input", ".", "--output", "x", "--family", "tiny", "--severities", "high"], "such as 1,3,5"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = typed(*words)
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_download_goes_to_a_folder_called_data_unless_told_otherwise(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        "tta_bench.prepare.download.download", lambda name, folder, console: calls.append((name, folder))
    )
    for words in (["cifar10_c"], ["cifar10_c", "--folder", tmp_path]):
        assert typed("download", *words).exit_code == 0
    assert calls == [("cifar10_c", Path("data")), ("cifar10_c", tmp_path)]


def test_pack_takes_the_words_of_a_run(images, tmp_path):
    words = ["dataset=image_folder", f"dataset.root={images}", "dataset.image_size=32", "dataset.resize=null"]
    done = typed("pack", *words, "--output", tmp_path / "pack", "--no-with-source")
    assert done.exit_code == 0, done.output
    assert packed(root=str(tmp_path / "pack")).labels("day").tolist() == sorted(label(i) for i in range(6))


def test_corrupt_writes_what_it_was_asked_for_and_leaves_torch_alone(images, tmp_path):
    words = ["--input", images / "day", "--output", tmp_path / "out", "--family", "cifar", "--domains", "saturate"]
    command = f"['data', 'corrupt', {', '.join(repr(str(word)) for word in words)}, '--processes', '1']"
    code = f"from tta_bench.cli import app\nif __name__ == '__main__':\n  app({command}, standalone_mode=False)\n"
    code += "  import sys; print('torch' in sys.modules)"
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    assert np.load(tmp_path / "out/saturate.npy").shape == (30, 32, 32, 3)
