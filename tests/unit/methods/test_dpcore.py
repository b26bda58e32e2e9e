"""DPCore's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers.plane import WIDTH, element, images_with, method
from tta_bench.functional import Statistics, batch_statistics, softmax_entropy, statistics_distance
from tta_bench.methods import DPCore
from tta_bench.testing import batches, ready, toy_backbone


def test_statistics_use_the_unbiased_standard_deviation():
    stats = batch_statistics(torch.tensor([[0.0], [2.0]]))
    assert stats.mean.item() == 1.0
    assert stats.std.item() == pytest.approx(math.sqrt(2))


def test_statistics_of_half_precision_features_are_float32():
    stats = batch_statistics(torch.randn(4, 3).bfloat16())
    assert (stats.mean.dtype, stats.std.dtype) == (torch.float32, torch.float32)


def test_statistics_of_one_sample_are_refused():
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        batch_statistics(torch.ones(1, 3))


def test_distance_adds_the_two_norms():
    a = Statistics(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0]))
    b = Statistics(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 13.0]))
    assert statistics_distance(a, b).item() == 5.0 + 12.0


def test_entropy_of_a_certain_prediction_is_zero():
    assert softmax_entropy(torch.tensor([[1000.0, 0.0]])).item() == 0.0


def test_weights_are_the_softmax_of_negative_distances_over_tau():
    built = method(tau=2.0)
    element(built, mean=0.0, std=1.0, prompt=0.0)
    element(built, mean=3.0, std=1.0, prompt=0.0)

    weights = built.coreset.weights(
        Statistics(torch.zeros(WIDTH).double(), torch.ones(WIDTH).double()), built.hparams.tau
    )

    nearer = 1 / (1 + math.exp(-3 * math.sqrt(WIDTH) / 2))
    torch.testing.assert_close(weights, torch.tensor([nearer, 1 - nearer]).double())


def test_the_first_batch_founds_the_coreset():
    built = method()
    built.forward_and_adapt(images_with(mean=2.0))
    torch.testing.assert_close(built.coreset.mean, torch.full((1, WIDTH), 2.0).double())
    torch.testing.assert_close(built.coreset.std, torch.full((1, WIDTH), 1.0).double())
    assert built.passes() == (3, 2)


def test_a_prompt_that_helps_enough_makes_the_domain_known():
    built = method()
    element(built, mean=2.0, std=1.0, prompt=-1.0)  # moves a mean of 2 to 1: ratio 0.5
    built.forward_and_adapt(images_with(mean=2.0))
    assert built.diagnostics()["is_new_domain"] == 0.0
    assert len(built.coreset) == 1
    assert built.passes() == (2, 1)


def test_a_ratio_equal_to_rho_is_known():
    built = method(rho=0.5)
    images = images_with(mean=2.0, std=2 / math.sqrt(3))  # values 1 and 3: exact in floating point
    built.source_std = batch_statistics(images.flatten(1)).std
    element(built, mean=2.0, std=1.0, prompt=-1.0)
    built.forward_and_adapt(images)
    assert built.diagnostics()["distance_weighted"] == 0.5 * built.diagnostics()["distance_raw"] == 2.0
    assert built.diagnostics()["is_new_domain"] == 0.0


def test_a_prompt_that_does_not_help_makes_the_domain_new():
    built = method(rho=0.49)
    element(built, mean=2.0, std=1.0, prompt=-1.0)
    built.forward_and_adapt(images_with(mean=2.0))
    assert built.diagnostics()["is_new_domain"] == 1.0
    assert len(built.coreset) == 2
    assert built.passes() == (4, 2)


def test_known_domain_moves_all_elements_by_alpha_times_weight():
    built = method(alpha=0.5, lr=0.25, tau=1e-9)  # tau -> 0: the nearest element has all the weight
    element(built, mean=2.0, std=0.5, prompt=-1.0)
    element(built, mean=90.0, std=1.0, prompt=7.0)

    built.forward_and_adapt(images_with(mean=3.0, std=1.0))

    torch.testing.assert_close(built.coreset.mean[:, 0], torch.tensor([2.5, 90.0]).double())
    torch.testing.assert_close(built.coreset.std[:, 0], torch.tensor([0.75, 1.0]).double())
    stepped = -1.0 * (1 - 0.25 * 0.01) - 0.25  # AdamW's first step: weight decay, then lr times the sign
    torch.testing.assert_close(built.coreset.prompt[0], torch.full((1, WIDTH), -1.0 + 0.5 * (stepped + 1.0)).double())
    torch.testing.assert_close(built.coreset.prompt[1], torch.full((1, WIDTH), 7.0).double())


def test_stored_standard_deviations_never_shrink():
    built = method(alpha=1.0)
    element(built, mean=2.0, std=3.0, prompt=-1.0)
    built.forward_and_adapt(images_with(mean=2.0, std=1.0))
    assert built.coreset.std[0, 0].item() == 3.0


@pytest.mark.parametrize(("coreset_stats", "mean"), [("raw", 2.0), ("prompted", 1.0)])
def test_eq_8_writes_back_the_statistics_of_the_switch(coreset_stats, mean):
    built = method(alpha=1.0, coreset_stats=coreset_stats)
    element(built, mean=2.0, std=1.0, prompt=-1.0)
    built.forward_and_adapt(images_with(mean=2.0))
    torch.testing.assert_close(built.coreset.mean, torch.full((1, WIDTH), mean).double())


def test_prediction_of_a_known_batch_is_that_of_the_weighted_prompt_before_its_update():
    built = method()
    element(built, mean=2.0, std=1.0, prompt=-1.0)
    images = images_with(mean=2.0)
    torch.testing.assert_close(built.forward_and_adapt(images), images.flatten(1) - 1.0)


def test_learning_a_prompt_lowers_the_distance_to_the_source():
    built = ready(lambda: DPCore(toy_backbone(), steps_new=20, num_source=32))
    images = batches(1)[0]
    built.forward_and_adapt(images)
    learned = batch_statistics(built.backbone.features(images, built.coreset.prompt[0]))
    initial = batch_statistics(built.backbone.features(images, built.initial_prompt))
    assert built.source.distance(learned) < 0.9 * built.source.distance(initial)


def test_a_batch_of_one_image_is_predicted_by_the_source_model_and_stores_nothing():
    built = ready(lambda: DPCore(toy_backbone(), steps_new=2, num_source=32))
    image = batches(1, batch_size=1)[0]
    with torch.no_grad():
        expected = built.backbone(image)
    torch.testing.assert_close(built.forward_and_adapt(image), expected)
    assert len(built.coreset) == 0


def test_new_elements_start_from_the_same_draw():
    built = ready(lambda: DPCore(toy_backbone(), steps_new=1, lr=0.0, rho=0.0, num_source=32))
    for images in batches(2):
        built.forward_and_adapt(images)
    assert torch.equal(built.coreset.prompt[0], built.coreset.prompt[1])


@pytest.mark.parametrize("init", ["gaussian", "uniform"])
def test_initial_prompts_have_the_standard_deviation_of_visual_prompt_tuning(init):
    built = DPCore(toy_backbone(), prompt_length=500, prompt_init=init)
    built.configure_model()
    bound = math.sqrt(6 / (3 * 4**2 + 32))
    assert built.initial_prompt.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert (built.initial_prompt.abs().max() <= bound) == (init == "uniform")


@pytest.mark.parametrize("space", ["tokens", "norms"])
def test_the_source_is_measured_without_prompt_on_exactly_the_images_asked_for(space):
    images = torch.cat(batches(3))
    built = DPCore(toy_backbone(), prompt_space=space, num_source=20)  # two batches of 8, and 4 images of a third
    built.fit_source(images.split(8))
    with torch.no_grad():
        features = toy_backbone().features(images[:20])
    expected = batch_statistics(features)
    torch.testing.assert_close((built.source.mean, built.source.std), tuple(expected))
    assert built.backbone.meter.forward_samples == 20


def test_the_floor_is_that_of_the_images_behind_the_source():
    built = method(num_source=12)
    built.forward_and_adapt(images_with(mean=2.0))
    expected = 2 * (1 + 1 / math.sqrt(2)) * math.sqrt(1 / 4 + 1 / 12)
    assert built.diagnostics()["distance_floor"] == pytest.approx(expected)


def test_a_batch_of_one_image_has_no_distances():
    built = method()
    built.forward_and_adapt(images_with(mean=2.0))
    built.forward_and_adapt(images_with(mean=2.0)[:1])
    found = built.diagnostics()
    assert all(math.isnan(found[f"distance_{name}"]) for name in ("raw", "weighted", "floor"))
    assert (found["is_new_domain"], built.passes()) == (0.0, (1, 0))


def test_entropy_filter_keeps_only_confident_source_images():
    built = DPCore(toy_backbone(), num_source=4, source_filter="entropy", prompt_length=1)
    built.configure_model()  # ln(4) / 2 - 1 < 0: nothing passes
    with pytest.raises(ValueError, match="needs 4 source images but got 0 with source_filter=entropy: "):
        built.fit_source(batches(2))


def test_too_few_source_images_are_refused():
    built = DPCore(toy_backbone(), num_source=300)
    with pytest.raises(ValueError, match="needs 300 source images but got 16: lower num_source"):
        built.fit_source(batches(2))


def test_a_stream_without_the_source_is_refused():
    with pytest.raises(RuntimeError, match="call fit_source"):
        DPCore(toy_backbone())(batches(1)[0])


def test_extra_parameters_grow_with_the_coreset():
    built = ready(lambda: DPCore(toy_backbone(), steps_new=1, rho=0.0, num_source=32, prompt_length=2))
    for images in batches(3):
        built.forward_and_adapt(images)
    assert built.extra_parameters() == (3 + 1) * 2 * 32
    assert built.trainable_parameters() == 2 * 32
