"""AugMix views: each augmentation compared with Pillow, and the random draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from tta_bench.functional import augmix
from tta_bench.functional.augmix import AUGMENTATIONS, augmix_views


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def photo(height=40, width=60):
    """A smooth image with all three channels different, in whole grey levels."""
    y, x = np.mgrid[:height, :width]
    channels = [np.sin(x / 7) + np.cos(y / 9), np.sin((x + y) / 11), np.cos(x / 5) * np.sin(y / 6)]
    scaled = [np.interp(c, (c.min(), c.max()), (20, 250)) for c in channels]
    return np.stack(scaled, axis=-1).round().astype(np.uint8)


def augment(name, *levels):
    images = torch.from_numpy(photo()).permute(2, 0, 1)[None].double().expand(len(levels), -1, -1, -1) / 255
    return AUGMENTATIONS[name](images, torch.tensor(levels)).permute(0, 2, 3, 1).numpy() * 255


PILLOW = {
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "equalize": lambda image, level: ImageOps.equalize(image),
    "solarize": lambda image, level: ImageOps.solarize(image, 256 - int(25.6 * abs(level))),
    "rotate": lambda image, level: image.rotate(int(3 * level), resample=Image.Resampling.BILINEAR),
    "shear_x": lambda image, level: warp(image, (1, 0.03 * level, 0, 0, 1, 0)),
    "shear_y": lambda image, level: warp(image, (1, 0, 0, 0.03 * level, 1, 0)),
    "translate_x": lambda image, level: warp(image, (1, 0, int(2 * level), 0, 1, 0)),  # a thirtieth of 60
    "translate_y": lambda image, level: warp(image, (1, 0, 0, 0, 1, int(40 / 30 * level))),
}


def warp(image, coefficients):
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, resample=Image.Resampling.BILINEAR)


@pytest.mark.parametrize("name", PILLOW)
@pytest.mark.parametrize("level", [1.0, -1.0, 0.5, -0.8])
def test_augmentation_is_that_of_pillow(name, level):
    expected = np.asarray(PILLOW[name](Image.fromarray(photo()), level)).astype(float)
    inner = (slice(5, -5), slice(5, -5))  # what a warp uncovers is filled differently
    ours = augment(name, -0.3, level)[1]
    np.testing.assert_allclose(ours[inner], expected[inner], atol=1.3)  # Pillow rounds


def test_posterize_keeps_four_bits():
    ours = augment("posterize", 0.4)[0]
    np.testing.assert_allclose(ours / 255 * 16, np.floor(photo() / 255 * 16).clip(max=15))


def test_a_warp_fills_with_grey():
    assert (augment("translate_x", 1.0)[0][:, -2:] == 127.5).all()


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_images_of_a_batch_are_augmented_each_by_its_level(name):
    together = augment(name, 1.0, -0.6)
    np.testing.assert_allclose(together[0], augment(name, 1.0)[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(together[1], augment(name, -0.6)[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [(50, 50), (40, 60)])
def test_crops_have_the_published_areas_and_aspect_ratios(size):
    height, width = size
    ramps = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).double()
    crops = augmix.random_crops((ramps[None] + 0.5).expand(500, -1, -1, -1), rng())
    middle_y, middle_x = crops[:, 0, height // 2 - 1 : height // 2 + 1], crops[:, 1, :, width // 2 - 1 : width // 2 + 1]
    tall = (middle_y[:, 1] - middle_y[:, 0]).mean(dim=1) * height  # a ramp's slope is the share of the side
    wide = (middle_x[..., 1] - middle_x[..., 0]).mean(dim=1) * width
    area, aspect = tall * wide.abs() / (height * width), wide.abs() / tall
    assert 0.08 <= area.min() < 0.1
    assert 0.8 < area.max() <= 1
    assert 3 / 4 - 1e-6 <= aspect.min() < 0.8
    assert 1.25 < aspect.max() <= 4 / 3 + 1e-6
    assert 0.42 < (wide < 0).double().mean() < 0.58  # mirrored; 3.6 standard deviations
    assert abs(aspect.log().mean()) < 0.05
    left = crops[:, 1].amin(dim=(1, 2))
    assert left.min() < 1
    assert left.max() > 0.5 * width


def test_a_crop_shows_its_part_of_the_image_unchanged():
    ramp = (torch.arange(32).double() + 0.5).expand(1, 1, 32, 32) / 32
    for seed in range(5):
        row = augmix.random_crops(ramp, rng(seed))[0, 0, 16, 1:-1]
        steps = row.diff()
        torch.testing.assert_close(steps, steps.mean().expand_as(steps))  # evenly spaced
        assert 0 <= row.min() < row.max() <= 1


def test_crops_take_nothing_from_beyond_the_border():
    black = torch.zeros(1, 3, 8, 8, dtype=torch.float64).expand(200, -1, -1, -1)
    assert augmix.random_crops(black, rng()).abs().max() < 1e-12


def test_a_view_is_a_convex_mixture_of_a_crop_and_its_chains(monkeypatch):
    monkeypatch.setattr(augmix, "AUGMENTATIONS", {"nothing": lambda images, levels: images})
    image = torch.rand(1, 3, 16, 16, generator=rng(5), dtype=torch.float64)
    crops = augmix.random_crops(image.expand(20, -1, -1, -1), rng())
    torch.testing.assert_close(augmix_views(image, 20, rng()), crops)


def test_three_chains_of_one_to_three_augmentations_are_mixed(monkeypatch):
    monkeypatch.setattr(augmix, "AUGMENTATIONS", {"add one": lambda images, levels: images + 1})
    zeros = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    values = augmix_views(zeros, 4000, rng())[:, 0, 0, 0]
    # (1 - m) times the mean length; mean 1/2 * 2, second moment 1/3 * (4 + 2/3 * 1/2).
    assert float(values.mean()) == pytest.approx(1.0, abs=0.04)
    assert float((values**2).mean()) == pytest.approx(13 / 9, abs=0.1)
    assert 0 <= float(values.min()) < float(values.max()) <= 3


def test_levels_are_a_tenth_to_one_with_either_sign_and_all_augmentations_come_up(monkeypatch):
    seen = {}

    def note(name):
        def keep(images, levels):
            seen.setdefault(name, []).append(levels)
            return images

        return keep

    monkeypatch.setattr(augmix, "AUGMENTATIONS", {name: note(name) for name in AUGMENTATIONS})
    augmix_views(torch.zeros(1, 3, 4, 4), 600, rng())
    counts = [sum(map(len, seen[name])) for name in AUGMENTATIONS]
    assert min(counts) > 0.8 * sum(counts) / 9
    assert sum(counts) == pytest.approx(600 * 3 * 2, rel=0.05)
    levels = torch.cat([torch.cat(part) for part in seen.values()])
    assert 0.1 <= float(levels.abs().min()) < 0.11
    assert 0.99 < float(levels.abs().max()) <= 1
    assert abs(float(levels.sign().mean())) < 0.06


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(16, 16), (9, 14)])
def test_views_keep_dtype_and_range_and_differ(dtype, size):
    image = torch.rand(1, 3, *size, generator=rng(5), dtype=dtype)
    views = augmix_views(image, 20, rng())
    assert (views.shape, views.dtype) == ((20, 3, *size), dtype)
    assert -1e-6 <= float(views.min()) < float(views.max()) <= 1 + 1e-6
    assert len(views.flatten(1).unique(dim=0)) == 20


def test_the_generator_decides_and_nothing_else():
    image = torch.rand(1, 3, 16, 16, generator=rng(5))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = augmix_views(image, 6, rng(7))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(augmix_views(image, 6, rng(7)), first)
    assert not torch.equal(augmix_views(image, 6, rng(8)), first)


def test_log_aspect_is_symmetric():
    assert augmix.LOG_ASPECT[0] == pytest.approx(-math.log(4 / 3))
