"""Augmented views: closed forms, and exactly the expected random draws."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from tta_bench.functional import augment
from tta_bench.functional.augment import VIEWS, Ranges, View, random_view

RANDOM = ("cotta", "soft", "roid")
NEUTRAL = Ranges(*[(1.0, 1.0)] * 3, (0.0, 0.0), (1.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.001, 0.001))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def pixels(count=2, height=12, width=10, seed=3):
    return torch.rand(count, 3, height, width, generator=rng(seed), dtype=torch.float64)


def transform(images, border="edge", seed=0, blur_and_noise=False, **changed):
    """The random transform with everything neutral but ``changed``, and never flipped."""
    view = augment.transformed_view(images, rng(seed), NEUTRAL._replace(**changed), border, blur_and_noise)
    return unflipped(view, seed, blur_and_noise)


def unflipped(view, seed, blur_and_noise):
    generator = rng(seed)
    neutral = augment.transformed_view(pixels(1), generator, NEUTRAL, "edge", blur_and_noise)
    return view if (neutral - pixels(1)).abs().mean() < 0.05 else view.flip(-1)


def close(view, expected):
    torch.testing.assert_close(view, expected, rtol=0, atol=2e-6)  # torchvision's grids and hues are float32 inside


def both(value):
    return (value, value)


def test_flip_mirrors_left_to_right_and_identity_does_nothing():
    images, generator = pixels(), rng()
    assert torch.equal(random_view(images, "flip", generator)[..., 0], images[..., -1])
    assert torch.equal(random_view(images, "identity", generator), images)
    assert torch.equal(generator.get_state(), rng().get_state())


@pytest.mark.parametrize("seed", range(4))
def test_neutral_draws_leave_the_image_or_its_mirror_image(seed):
    images = pixels()
    view = augment.transformed_view(images, rng(seed), NEUTRAL, "edge", False)
    flipped = (view - images).abs().max() > 0.1
    close(view, images.flip(-1) if flipped else images)


def test_half_of_the_views_are_mirrored():
    images, generator = pixels(1), rng()
    views = [augment.transformed_view(images, generator, NEUTRAL, "edge", False) for _ in range(200)]
    mirrored = sum(bool((view - images).abs().max() > 0.1) for view in views)
    assert 70 < mirrored < 130  # 4.2 standard deviations


@pytest.mark.parametrize(
    ("field", "enhance"),
    [("brightness", ImageEnhance.Brightness), ("saturation", ImageEnhance.Color), ("contrast", ImageEnhance.Contrast)],
)
@pytest.mark.parametrize("factor", [0.6, 1.3])
def test_colour_is_that_of_pillow(field, enhance, factor):
    image = (pixels(1)[0] * 255).round().permute(1, 2, 0).numpy().astype(np.uint8)
    expected = np.asarray(enhance(Image.fromarray(image)).enhance(factor)).astype(float)
    view = transform(torch.from_numpy(image).double().permute(2, 0, 1)[None] / 255, **{field: both(factor)})
    np.testing.assert_allclose(view[0].permute(1, 2, 0).numpy() * 255, expected, atol=1.6)  # Pillow rounds


def test_gamma_is_a_power():
    images = pixels()
    close(transform(images, gamma=both(0.7)), images**0.7)


def test_hue_turns_the_colour_circle():
    red = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    orange = transform(red, hue=both(0.05))[0, :, 4, 4]
    close(orange, torch.tensor([1.0, 0.3, 0.0], dtype=torch.float64))  # 18 degrees of 60


def test_colour_changes_come_in_every_order():
    images = pixels(1)
    changed = {"brightness": both(1.4), "gamma": both(0.7)}  # 1.4^0.7 x^0.7 or 1.4 x^0.7, clipped
    views = {round(float(transform(images, seed=s, **changed).mean()), 6) for s in range(20)}
    expected = {round(float(v.clamp(max=1).mean()), 6) for v in ((1.4 * images).clamp(max=1) ** 0.7, 1.4 * images**0.7)}
    assert views == expected


def test_shift_moves_down_and_right_by_whole_pixels_and_repeats_the_edge():
    images = pixels(height=16, width=8)
    view = transform(images, shift=both(1 / 8))
    close(view[:, :, 2:, 1:], images[:, :, :-2, :-1])
    close(view[:, :, :2, 1:], images[:, :, :1, :-1].expand(-1, -1, 2, -1))
    close(view[:, :, 2:, :1], images[:, :, :-2, :1])


def test_roid_mirrors_at_the_border():
    images = pixels(height=16, width=16)
    view = transform(images, border="reflect", shift=both(1 / 8))
    close(view[:, :, :2, 2:], images[:, :, 1:3, :-2].flip(-2))


def test_a_quarter_turn_is_exact():
    images = pixels(height=10, width=10)
    view = transform(images, degrees=both(90.0))
    close(view, images.rot90(-1, (-2, -1)))


def test_scale_enlarges_about_the_centre():
    ramp = (torch.arange(16, dtype=torch.float64) / 20).expand(1, 3, 16, 16)
    view = transform(ramp, scale=both(1.1))
    centre = 7.5 / 20
    close(view[0, 0, 8, 2:-2], centre + (ramp[0, 0, 8, 2:-2] - centre) / 1.1)


def test_blur_and_noise_have_the_published_strength():
    flat = torch.full((1, 3, 64, 64), 0.5, dtype=torch.float64)
    noise = transform(flat, blur_and_noise=True) - 0.5
    assert float(noise.std()) == pytest.approx(0.005, rel=0.05)
    point = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    point[:, :, 8, 8] = 1
    blurred = transform(point, blur_and_noise=True, blur=both(0.5))
    weight = np.exp(-(np.arange(-2, 3) ** 2) / (2 * 0.5**2))
    weight /= weight.sum()
    row = blurred[0].mean(0)[8, 6:11].numpy()
    column = 8 if row.argmax() == 2 else 7  # the mirror image has it one to the left
    np.testing.assert_allclose(blurred[0].mean(0)[8, column - 2 : column + 3], weight * weight[2], atol=0.012)


def test_blur_at_the_border_sees_the_repeated_edge():
    step = torch.ones(1, 3, 64, 32, dtype=torch.float64)
    step[..., 0] = step[..., -1] = 0  # alike on both sides, so that mirroring changes nothing
    weight = np.exp(-(np.arange(-2, 3) ** 2) / (2 * 0.5**2))
    weight /= weight.sum()
    border = transform(step, blur_and_noise=True, blur=both(0.5))[0, :, :, 0].mean()
    assert float(border) == pytest.approx(weight[3:].sum(), abs=0.005)


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("size", [(16, 16), (17, 22), (5, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_keep_shape_dtype_and_range(kind, size, dtype):
    images, generator = pixels(3, *size).to(dtype), rng()
    for _ in range(5):
        view = random_view(images, kind, generator)
        assert (view.shape, view.dtype) == (images.shape, dtype)
        assert 0 <= float(view.min()) <= float(view.max()) <= 1


@pytest.mark.parametrize("kind", RANDOM)
def test_the_generator_decides_and_nothing_else(kind):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = random_view(pixels(), kind, rng(7))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(random_view(pixels(), kind, rng(7)), first)
    assert not torch.equal(random_view(pixels(), kind, rng(8)), first)


def test_images_of_a_batch_share_the_draw_but_not_the_noise():
    images = pixels(1).repeat(2, 1, 1, 1)
    without, noisy = random_view(images, "roid", rng()), random_view(images, "cotta", rng())
    close(without[0], without[1])
    difference = noisy[0] - noisy[1]
    assert 0 < float(difference.abs().max()) < 0.05


@pytest.mark.parametrize("kind", RANDOM)
def test_the_input_stays_as_it_is(kind):
    images = pixels()
    random_view(images, kind, rng())
    assert torch.equal(images, pixels())


def test_soft_halves_the_published_ranges():
    for name in ("brightness", "contrast", "saturation", "hue", "gamma", "scale"):
        full, soft = getattr(Ranges(), name), getattr(augment.SOFT, name)
        assert soft[1] - soft[0] == pytest.approx((full[1] - full[0]) / 2)


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        ValueError, match="unknown kind of view 'hard': choose one of cotta, soft, roid, flip, identity"
    ):
        random_view(pixels(), "hard", rng())
    assert set(VIEWS) == {"cotta", "soft", "roid", "flip", "identity"}


def test_the_names_in_signatures_are_the_kinds_that_exist():
    assert set(get_args(View)) == set(VIEWS)
