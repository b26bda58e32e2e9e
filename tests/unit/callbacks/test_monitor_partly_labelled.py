"""A stream in which some images have no label: they are predicted and never scored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from tta_bench.callbacks import AdaptationMonitor
from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.methods import Tent
from tta_bench.results.proportion import wilson
from tta_bench.results.rows import BINS, Tally
from tta_bench.results.run_folder import whole_rows
from tta_bench.results.visits import visit_summary
from tta_bench.testing import NUM_CLASSES, run_stream, toy_backbone
from tta_bench.testing.toy import ToyDomains


class Partly(ToyDomains):
    """Every third image of two domains has a label, and none of the third domain."""

    def labels(self, domain):
        labels = super().labels(domain).copy()
        labels[np.arange(len(labels)) % 3 > 0] = -1
        return labels if domain != "pale" else np.full_like(labels, -1)


@pytest.fixture
def watched(tmp_path):
    data = StreamDataModule(Partly(), schedule_for(Partly(), "csc", batch_size=4))
    monitor = AdaptationMonitor(rows=tmp_path / "batches.csv")
    scores = run_stream(Tent(toy_backbone()), data, monitor).double()
    labels = np.concatenate([batch.labels.numpy() for batch in data.test_dataloader()])
    return monitor.tally, scores, labels, whole_rows(tmp_path / "batches.csv")


def test_errors_are_over_the_labelled_images(watched):
    tally, scores, labels, _ = watched
    wrong = (scores.argmax(dim=1).numpy() != labels)[labels >= 0]
    summary = tally.summary()
    assert 0 < wrong.mean() < 1
    assert summary["sample_error"] == pytest.approx(100 * wrong.mean())
    assert summary["num_samples"] == {"dark": 17, "pale": 17, "inverted": 17}
    assert summary["num_labelled"] == {"dark": 6, "pale": 0, "inverted": 6}
    assert summary["domain_error"]["pale"] is None
    assert summary["mean_error"] == pytest.approx(
        (summary["domain_error"]["dark"] + summary["domain_error"]["inverted"]) / 2
    )
    assert summary["sample_error_interval"] == list(wilson(int(wrong.sum()), 12))


def test_the_calibration_error_is_over_them_too(watched):
    tally, scores, labels, _ = watched
    known = labels >= 0
    expected = multiclass_calibration_error(
        scores.softmax(dim=1)[known], torch.from_numpy(labels[known]), NUM_CLASSES, n_bins=BINS
    )
    assert tally.calibration_error == pytest.approx(100 * expected.item(), rel=1e-5)


def test_the_rows_on_disk_give_the_same_numbers(watched):
    tally, _, _, rows = watched
    again = Tally()
    for row in rows:
        again.add(row)
    mine, theirs = again.summary(), tally.summary()
    rounded = ("seconds", "seconds_per_batch_median")
    assert {k: v for k, v in mine.items() if k not in rounded} == {k: v for k, v in theirs.items() if k not in rounded}
    json.dumps(visit_summary(rows), allow_nan=False)


def test_no_label_at_all(tmp_path):
    class Without(ToyDomains):
        def labels(self, domain):
            return np.full(17, -1)

    data = StreamDataModule(Without(), schedule_for(Without(), "cdc", batch_size=4))
    monitor = AdaptationMonitor(rows=tmp_path / "batches.csv")
    run_stream(Tent(toy_backbone()), data, monitor)
    summary = monitor.tally.summary()
    assert [summary[key] for key in ("mean_error", "sample_error", "ece", "sample_error_interval")] == [None] * 4
    assert summary["top_class_share"] > 0
    assert math.isnan(monitor.tally.mean_error)
    found = visit_summary(whole_rows(tmp_path / "batches.csv"))
    assert (found["revisit_change"], found["recovery_batches"]) == (None, None)


def test_wilsons_interval_holds_its_level():
    rng = np.random.default_rng(0)
    counts = rng.binomial(40, 0.9, size=4000)
    inside = [low <= 90 <= high for low, high in (wilson(int(c), 40) for c in counts)]
    assert 0.93 < np.mean(inside) < 0.975
