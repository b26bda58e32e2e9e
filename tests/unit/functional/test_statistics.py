"""Source statistics over all batches together, and the distance due to sampling alone."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import Statistics, batch_statistics, statistics_distance
from tta_bench.functional.statistics import SourceStatistics, map_statistics


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_source_is_measured_over_all_batches_together():
    features = draw(10, 3) * torch.tensor([1.0, 2.0, 3.0])
    source = SourceStatistics.measure(features.split(4))
    torch.testing.assert_close(source.mean, features.mean(dim=0))
    torch.testing.assert_close(source.std, features.std(dim=0))


def test_two_positions_of_a_map_have_a_deviation_and_one_has_none():
    mean, std = map_statistics(torch.tensor([[[[1.0, 3.0]]]]))
    assert (mean.item(), std.item()) == (2.0, pytest.approx(math.sqrt(2)))
    with pytest.raises(ValueError, match="at least 2 positions of a map, got 1"):
        map_statistics(torch.tensor([[[[1.0]]]]))


def test_maps_are_measured_image_by_image():
    maps = [draw(2, 3, 4, 5), draw(1, 3, 6, 2, seed=1) * 4 + 7]
    source = SourceStatistics.measure(maps)
    images = [batch_statistics(one.flatten(1).T) for batch in maps for one in batch]  # positions as samples
    mean, std = (torch.stack(values).mean(dim=0) for values in zip(*images, strict=True))
    torch.testing.assert_close((source.mean, source.std), (mean, std))
    away = torch.stack([statistics_distance(image, Statistics(mean, std)) for image in images])
    torch.testing.assert_close(source.spread, away.mean())


def test_the_distance_is_that_of_eq_5():
    source = SourceStatistics(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor(0.0))
    assert source.distance(Statistics(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 13.0]))).item() == 5.0 + 12.0


@pytest.mark.parametrize(("num_images", "num_source"), [(16, 300), (64, 20), (16, 16)])
def test_clean_batches_of_a_gaussian_are_at_the_floor_on_average(num_images, num_source):
    scale = torch.linspace(0.5, 2.0, 400, dtype=torch.float64)
    found, floors = [], []
    for seed in range(20):
        source = SourceStatistics.measure([draw(num_source, 400, seed=seed) * scale])
        batch = draw(num_images, 400, seed=1000 + seed) * scale
        found.append(source.distance(batch_statistics(batch)).item())
        floors.append(source.floor(num_images, num_source).item())
    assert math.fsum(found) == pytest.approx(math.fsum(floors), rel=0.03)
