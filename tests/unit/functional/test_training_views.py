"""Augmented source images: random draws per image, and closed forms on ramps."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional.training_views import training_view

COUNT, SIDE = 64, 12


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def noise():
    return torch.rand(COUNT, 3, SIDE, SIDE, generator=rng(1), dtype=torch.float64)


def same(a, b):
    return (a == b).flatten(1).all(dim=1)


def kept(view, images):
    """Which images are themselves, mirrored or not."""
    return same(view, images) | same(view, images.flip(-1))


def test_by_default_about_half_of_the_images_are_mirrored_and_nothing_else_happens():
    images = noise()
    view = training_view(images, rng())
    assert kept(view, images).all()
    assert 20 < same(view, images).sum() < 44


def test_how_many_are_mirrored_can_be_chosen():
    images = noise()
    assert torch.equal(training_view(images, rng(), mirror=0.0), images)
    assert torch.equal(training_view(images, rng(), mirror=1.0), images.flip(-1))


@pytest.mark.parametrize("size", [3, 5])
def test_a_blur_reaches_as_far_as_its_kernel(size):
    images = torch.zeros(COUNT, 3, SIDE, SIDE)
    images[..., 6, 6] = 1.0
    reached = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    reached[6 - size // 2 : 7 + size // 2, 6 - size // 2 : 7 + size // 2] = True
    view = training_view(images, rng(3), mirror=0.0, blur=1.0, blur_size=size)  # seed 3: wider than a pixel
    assert torch.equal(view > 0, reached.expand_as(view))


def test_the_deviation_of_a_blur_is_uniform_from_a_tenth_of_a_pixel_to_two():
    images = torch.zeros(1, 3, SIDE, SIDE, dtype=torch.float64)
    images[..., 6, 6] = 1.0
    deviations = []
    for seed in range(100):
        view = training_view(images, rng(seed), mirror=0.0, blur=1.0)[0, 0]
        ratio = (view[6, 6] / view[6, 7]).item()  # exp(1 / 2s^2), where the neighbour is not lost in rounding
        deviations.append((2 * math.log(ratio)) ** -0.5 if ratio < 1e12 else 0.1)
    assert 0.1 <= min(deviations) < 0.2
    assert 1.9 < max(deviations) <= 2.0
    assert sum(deviations) / 100 == pytest.approx(1.05, abs=0.15)


def test_crops_are_windows_of_the_images():
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    ramps = torch.stack([x, y, x + y]).double().expand(COUNT, 3, SIDE, SIDE) / (2 * SIDE)
    view = training_view(ramps, rng(), crop=0.6) * (2 * SIDE)
    inner = view[..., 1:-1, 1:-1]  # at the border there is nothing to interpolate with
    per_x, per_y = inner.diff(dim=-1), inner.diff(dim=-2)
    width, height = per_x[:, 0, 0, 0].abs(), per_y[:, 1, 0, 0]
    torch.testing.assert_close(per_x[:, 0].abs(), width[:, None, None].expand_as(per_x[:, 0]))
    torch.testing.assert_close(per_y[:, 1], height[:, None, None].expand_as(per_y[:, 1]))
    torch.testing.assert_close(view[:, 0] + view[:, 1], view[:, 2])
    area = width * height
    assert 0.6 <= area.min() < 0.7
    assert 0.8 < area.max() <= 1
    assert (height / width).max() <= 4 / 3 + 1e-6
    assert len(area.unique()) == COUNT


def test_grey_images_have_one_colour():
    view = training_view(noise(), rng(), grey=1.0)
    assert torch.equal(view[:, 0], view[:, 2])


def test_colours_change_for_some_images_and_stay_in_range():
    images = noise()
    for change in ({"jitter": 0.5}, {"grey": 0.5}, {"blur": 0.5}):
        view = training_view(images, rng(), **change)
        assert 20 < kept(view, images).sum() < 44, change
        assert view.min() >= 0, change
        assert view.max() <= 1, change


def test_only_the_generator_matters():
    torch.manual_seed(0)
    first = training_view(noise(), rng(), crop=0.5, jitter=0.8, grey=0.2, blur=0.5)
    torch.manual_seed(1)
    assert torch.equal(first, training_view(noise(), rng(), crop=0.5, jitter=0.8, grey=0.2, blur=0.5))
    assert not torch.equal(first, training_view(noise(), rng(2), crop=0.5, jitter=0.8, grey=0.2, blur=0.5))
