"""What is measured of a stream without labels, beside the source model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import Precision

from tta_bench.callbacks import AdaptationMonitor
from tta_bench.callbacks.label_free import LabelFree
from tta_bench.functional.label_free import atc_threshold
from tta_bench.methods import LAME, Source, Tent
from tta_bench.results.rows import Tally
from tta_bench.results.run_folder import whole_rows
from tta_bench.testing import run_stream, toy_backbone, toy_data


def watched(method, path=None):
    data = toy_data()
    monitor = AdaptationMonitor(rows=path, label_free=LabelFree(toy_backbone))
    return run_stream(method, data, monitor).double(), monitor, data


@pytest.mark.parametrize("cls", [Tent, LAME])
def test_the_figures_are_those_of_the_whole_stream(cls):
    settings = {"lr": 2.0} if cls is Tent else {}
    scores, monitor, data = watched(cls(toy_backbone(), **settings))
    found = monitor.tally.summary()["label_free"]
    probabilities = scores if cls is LAME else scores.softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    source = toy_backbone()
    with torch.no_grad():
        by_source = torch.cat([source(source.prepare(b.images)) for b in data.test_dataloader()]).argmax(dim=1)
        clean = data.domains.source_images()
        pixels = torch.from_numpy(np.stack([clean[i] for i in range(len(clean))])).permute(0, 3, 1, 2)
        own, called = source(source.prepare(pixels)).double().softmax(dim=1).max(dim=1)
    assert cls is LAME or (predicted != by_source).any()
    assert found["source_agreement"] == pytest.approx(100 * float((predicted == by_source).double().mean()))
    assert found["confidence"] == pytest.approx(100 * float(confidence.mean()))
    assert found["flip_rate"] == pytest.approx(100 * float((predicted[1:] != predicted[:-1]).double().mean()))
    threshold = atc_threshold(own, called == torch.from_numpy(clean.labels))
    assert found["atc_accuracy"] == pytest.approx(100 * float((confidence >= threshold).double().mean()))
    assert 0 < found["nuclear_norm"] <= 100


def test_the_source_model_agrees_with_itself_and_the_passes_are_not_counted():
    _, monitor, _ = watched(Source(toy_backbone()))
    assert monitor.tally.summary()["label_free"]["source_agreement"] == 100
    assert monitor.tally.summary()["forward_per_sample"] == 1


def test_a_batch_costs_one_pass_of_the_source_model():
    made = []
    monitor = AdaptationMonitor(label_free=LabelFree(lambda: made.append(toy_backbone()) or made[-1]))
    data = toy_data()
    run_stream(Tent(toy_backbone()), data, monitor)
    passes = sum(backbone.meter.forward_samples for backbone in made)
    assert passes == len(data.domains.source_images()) + data.schedule.num_samples


def test_the_distance_of_the_data_is_that_of_the_source_features():
    figures = [watched(cls(toy_backbone()))[1].tally.summary()["label_free"] for cls in (Source, Tent)]
    assert figures[0]["source_distance"] == pytest.approx(figures[1]["source_distance"])
    assert figures[0]["source_distance"] > 0


def test_the_rows_on_disk_give_the_same_figures(tmp_path):
    _, monitor, _ = watched(Tent(toy_backbone()), tmp_path / "batches.csv")
    again = Tally()
    for row in whole_rows(tmp_path / "batches.csv"):
        again.add(row)
    assert again.summary()["label_free"] == monitor.tally.summary()["label_free"]


def test_a_resumed_run_compares_its_first_image_with_the_last_one_before():
    free = LabelFree(toy_backbone)
    _, _, data = watched(Tent(toy_backbone()))
    trainer = type("Trainer", (), {"precision_plugin": Precision(), "datamodule": data})()
    batch = next(iter(data.test_dataloader()))
    scores = torch.nn.functional.one_hot(torch.ones(len(batch.images), dtype=torch.long), 4).double()
    for last, flips in ((None, 0), (1, 0), (3, 1)):
        free.start(trainer, torch.device("cpu"), last)
        assert free.figures(scores, Tent.output_kind, batch)["flips"] == flips
