"""The monitor agrees with torchmetrics, and an oracle resets methods at domain changes."""

from __future__ import annotations

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from tta_bench.callbacks import AdaptationMonitor, ResetAtBoundaries
from tta_bench.methods import LAME, Tent
from tta_bench.results.rows import BINS
from tta_bench.results.run_folder import whole_rows
from tta_bench.testing import NUM_CLASSES, ToyDomains, run_stream, toy_backbone, toy_data


@pytest.mark.parametrize("cls", [Tent, LAME])
def test_the_calibration_error_is_that_of_torchmetrics(cls):
    method, data, monitor = cls(toy_backbone()), toy_data(), AdaptationMonitor()
    scores = run_stream(method, data, monitor).double()
    probabilities = scores if cls is LAME else scores.softmax(dim=1)
    labels = torch.cat([batch.labels for batch in data.test_dataloader()])
    expected = multiclass_calibration_error(probabilities, labels, NUM_CLASSES, n_bins=BINS)
    assert monitor.tally.calibration_error == pytest.approx(100 * expected.item(), rel=1e-5)


def test_the_top_class_share_is_counted_per_batch():
    data, monitor = toy_data(), AdaptationMonitor()
    predicted = run_stream(Tent(toy_backbone()), data, monitor).argmax(dim=1)
    largest = [max(part.bincount()) for part in predicted.split([len(step.indices) for step in data.schedule])]
    share = float(sum(largest)) / len(predicted)
    assert monitor.tally.summary()["top_class_share"] == pytest.approx(share)


def test_each_row_counts_its_own_batch(tmp_path):
    data, monitor = toy_data(setting="csc"), AdaptationMonitor(rows=tmp_path / "batches.csv")
    predicted = run_stream(Tent(toy_backbone()), data, monitor).argmax(dim=1)
    rows = whole_rows(tmp_path / "batches.csv")
    sizes = [8, 8, 1] * 3  # Tent passes each image once forward and once backward
    assert [(row.step, row.forward_samples, row.backward_samples) for row in rows] == [
        (t, n, n) for t, n in enumerate(sizes)
    ]
    domains = [name for name in ToyDomains.domains for _ in range(3)]
    for row, domain, batch, guesses in zip(rows, domains, data.test_dataloader(), predicted.split(sizes), strict=True):
        assert row.by_domain == {domain: (len(guesses), int((guesses != batch.labels).sum()))}
    assert (monitor.tally.forward_samples, monitor.tally.backward_samples) == (51, 51)


def test_an_oracle_resets_at_every_change_of_domain_and_nowhere_else():
    class Counted(Tent):
        resets = 0

        def forward_and_adapt(self, images):
            fresh = all(torch.equal(p, v) for p, v in zip(self.adapted, self.initial_values(self.adapted), strict=True))
            self.resets += fresh
            return super().forward_and_adapt(images)

    data, monitor = toy_data(setting="csc"), AdaptationMonitor()
    method = Counted(toy_backbone(), lr=0.1)
    run_stream(method, data, monitor, ResetAtBoundaries(monitor))
    assert method.resets == 3  # one per domain
