"""What is summed over the rows of a run."""

from __future__ import annotations

import math

import pytest

from tta_bench.results.rows import BatchRow, Tally


def label_free_row(step, samples, confidence, flips=0.0):
    figures = {"confidence": confidence, "source_agreement": 0.5, "atc_accuracy": math.nan, "nuclear_norm": 0.25,
               "source_distance": 2.0, "flips": flips, "last_class": 0.0}  # fmt: skip
    return BatchRow(step, {"fog": (samples, 0.0)}, samples, 0, 0.1, label_free=figures)


def test_the_drift_of_the_confidence_is_from_the_first_to_the_last_tenth():
    tally = Tally()
    for step in range(25):  # a tenth is two batches
        tally.add(label_free_row(step, 1 if step % 2 else 3, step / 100))
    found = tally.summary()["label_free"]
    first, last = (3 * 0.00 + 1 * 0.01) / 4, (1 * 0.23 + 3 * 0.24) / 4
    assert found["confidence_drift"] == pytest.approx(100 * (last - first))
    assert found["atc_accuracy"] is None
    assert found["nuclear_norm"] == 25


def test_neighbours_in_time_are_one_pair_fewer_than_images():
    tally = Tally()
    for step in range(2):
        tally.add(label_free_row(step, 3, 0.5, flips=1.0))
    assert tally.summary()["label_free"]["flip_rate"] == pytest.approx(100 * 2 / 5)
