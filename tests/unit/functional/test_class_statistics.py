"""Class statistics, compared with torch's, one class at a time."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional.class_statistics import class_statistics

SOURCE = torch.randn(23, 4, generator=torch.Generator().manual_seed(0)) * 0.01 + 100  # variance << mean^2
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 2, 2, 1, 4, 0, 1, 1, 2, 2, 0, 0, 1, 2, 2, 2])  # none of 3, one of 4


def measured(batch_size=5, at_most=100, at_least=2):
    pairs = zip(SOURCE.split(batch_size), LABELS.split(batch_size), strict=True)
    return class_statistics(pairs, 5, at_most=at_most, at_least=at_least)


def test_mean_and_variance_are_those_of_the_classes():
    found = measured()
    assert found.counts.tolist() == [7, 6, 9, 0, 1]
    for k in range(3):
        own = SOURCE[LABELS.eq(k)].double()
        torch.testing.assert_close(found.mean[k], own.mean(dim=0))
        torch.testing.assert_close(found.variance[k], own.var(dim=0))


def test_rare_classes_get_the_statistics_of_all():
    found = measured()
    for k in (3, 4):
        torch.testing.assert_close(found.mean[k], SOURCE.double().mean(dim=0))
        torch.testing.assert_close(found.variance[k], SOURCE.double().var(dim=0))
    torch.testing.assert_close(measured(at_least=1).mean[4], SOURCE[11].double())


def test_no_more_features_are_used_and_no_more_batches_asked_for_than_at_most():
    asked = []

    def pairs():
        for i in range(4):
            asked.append(i)
            yield SOURCE[5 * i : 5 * i + 5], LABELS[5 * i : 5 * i + 5]

    found = class_statistics(pairs(), 5, at_most=7, at_least=2)
    assert asked == [0, 1]
    assert found.counts.tolist() == [3, 2, 2, 0, 0]
    torch.testing.assert_close(found.mean[0], SOURCE[[0, 3, 6]].double().mean(dim=0))


def test_an_empty_source_is_refused():
    with pytest.raises(ValueError, match="but there are none"):
        class_statistics([], 5, at_most=7, at_least=2)
