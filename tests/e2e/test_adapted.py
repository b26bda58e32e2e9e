"""Predictions and adapted models leave a run, and come back."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import tta_bench as tta
from tests.helpers.commands import invoke
from tta_bench.cli import app
from tta_bench.datasets.classification.shapes_c import shapes_c

SIZE = ("dataset.image_size=null", "dataset.resize=null", "setting.batch_size=8", "trainer=cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    data = shapes_c(num_images=20, domains=["contrast"])
    for k in range(20):
        Image.fromarray(data.load("contrast", k)).save(folder / f"{k}.png")
    rows = [f"{k}.png,{data.labels('contrast')[k] if k % 2 else ''},g{k}" for k in range(20)]
    (folder / "photos.csv").write_text("\n".join(["path,label,group", *rows]))
    return folder


def folder_of(home, method):
    (path,) = home.rglob(f"{method}/*/result.json")
    return path.parent


def ran(photos, home, method, *words):
    data = ("dataset=manifest", f"dataset.file={photos}/photos.csv", *SIZE)
    done = invoke("run", *data, f"method={method}", "save_predictions=csv", "save_adapted=last", *words, home=home)
    assert done.exit_code == 0, done.output
    return folder_of(home, method)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pixels(photos, first, last):
    images = [np.asarray(Image.open(photos / f"{k}.png")) for k in range(first, last)]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def test_tent_from_the_stream_to_new_images(photos, tmp_path):
    run = ran(photos, tmp_path, "tent", "method.lr=0.05", "save_adapted=every_2")
    rows = read(run / "predictions.csv")
    assert [row["path"] for row in rows] == [f"{k}.png" for k in range(20)]
    assert [row["group"] for row in rows] == [f"g{k}" for k in range(20)]
    assert [row["label"] == "" for row in rows] == [k % 2 == 0 for k in range(20)]
    assert all(row["predicted"] == row["top1"] and row["confidence"] == row["score1"] for row in rows)
    wrong = sum(row["label"] not in ("", row["predicted"]) for row in rows)
    result = json.loads((run / "result.json").read_text())
    assert result["sample_error"] == pytest.approx(100 * wrong / 10)
    agreed = sum(row["predicted"] == row["source_predicted"] for row in rows)
    assert result["label_free"]["source_agreement"] == pytest.approx(100 * agreed / 20)

    # The same method in a plain loop ends with the same weights, scores and next prediction.
    method = tta.create_method("tent", tta.load_model("shapes_vit"), lr=0.05)
    for start in (0, 8, 16):
        method(pixels(photos, start, min(start + 8, 20)))
    weights = load_file(run / "adapted" / "weights.safetensors")
    differ = {k: (weights[k] - v).abs().max() for k, v in method.backbone.vit.state_dict().items()}
    assert not any(differ.values()), differ
    assert any(not torch.equal(weights[k], v) for k, v in tta.load_model("shapes_vit").vit.state_dict().items())
    loaded = tta.load_model("shapes_vit", checkpoint=run / "adapted" / "weights.safetensors")
    images = loaded.prepare(pixels(photos, 0, 4))
    assert torch.equal(loaded(images), method.backbone(images))
    again = tta.load_adapted(run)
    for start in (0, 4):  # momentum and all
        assert torch.equal(again(pixels(photos, start, start + 4)), method(pixels(photos, start, start + 4)))
    assert tta.load_adapted(run / "adapted-2").optimizer is not None

    output = tmp_path / "new.csv"
    words = (f"run={run}", f"images={photos}/photos.csv", "batch_size=8", f"output={output}")
    done = CliRunner().invoke(app, ["predict", *words])
    assert "20 images in" in done.output, done.output
    assert [row["path"] for row in read(output)] == [f"{k}.png" for k in range(20)]
    done = CliRunner().invoke(app, ["predict", *words])
    assert "new.csv already exists: remove it, or choose another output" in " ".join(done.output.split()), done.output
    for adapt in (False, True):  # every batch meets the saved state, or what the batches before it left
        learning = tmp_path / f"{adapt}.csv"
        CliRunner().invoke(app, ["predict", *words[:3], f"output={learning}", f"adapt={str(adapt).lower()}"])
        expected, again = [], tta.load_adapted(run)
        for start in (0, 8, 16):
            method = again if adapt else tta.load_adapted(run)
            scores = method(pixels(photos, start, min(start + 8, 20))).double().softmax(dim=1)
            expected += scores.amax(dim=1).tolist()
        assert [float(row["confidence"]) for row in read(learning)] == expected


def test_a_method_that_adds_something_saves_its_state_only_and_says_why(photos, tmp_path):
    run = ran(photos, tmp_path, "rotta", "method.memory_size=8", "method.update_every=8")
    assert not (run / "adapted" / "weights.safetensors").exists()
    assert "load state.pt" in json.loads((run / "adapted" / "card.json").read_text())["weights"]
    scores = tta.load_adapted(run)(pixels(photos, 0, 4))
    assert scores.shape == (4, 10)


def test_wrong_words(photos, tmp_path):
    base = ("run", "dataset=manifest", f"dataset.images={photos}", *SIZE)
    done = invoke(*base, "save_adapted=best", home=tmp_path)
    assert "save_adapted must be last or every_N, after N batches (labels of the stream may not choose" in done.output
    assert done.exit_code == 2
    with pytest.raises(FileNotFoundError, match="run it again with save_adapted=last"):
        tta.load_adapted(tmp_path)
    for words, message in (
        (("run=nowhere", f"images={photos}", f"output={tmp_path}/new.csv"), "run=nowhere does not exist"),
        ((f"run={tmp_path}", "images=nowhere", f"output={tmp_path}/new.csv"), "images=nowhere does not exist"),
        ((f"run={tmp_path}", f"images={photos}", f"output={photos}"), "already exists"),
        ((f"run={tmp_path}", f"images={photos}", "batch_size=0"), "batch_size a number of images"),
        ((f"run={tmp_path}", f"images={photos}", "batch=4"), "predict takes no 'batch'"),
    ):
        done = CliRunner().invoke(app, ["predict", *words])
        assert message in " ".join(done.output.split()), done.output
