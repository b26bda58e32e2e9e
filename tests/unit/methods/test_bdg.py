"""BDG's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import symmetric_cross_entropy
from tta_bench.methods import BDG
from tta_bench.testing import batches, ready, toy_backbone

IMAGES = batches(1)[0]


def method(**settings):
    return ready(lambda: BDG(toy_backbone(), **settings))


def logits_of(*rows):
    return torch.tensor(rows).log() + 5.0  # a softmax forgets the shift


def test_thresholds_start_uniform():
    built = method()
    assert built.threshold.item() == pytest.approx(1 / 4 + 0.2)
    torch.testing.assert_close(built.frequency, torch.full((4,), 0.25))


def test_thresholds_follow_the_quantile_and_the_mean_of_a_batch():
    built = method(threshold_momentum=0.75, quantile=0.5)
    built.supervise(
        logits_of([0.7, 0.1, 0.1, 0.1], [0.1, 0.5, 0.3, 0.1], [0.9, 0.1 - 2e-6, 1e-6, 1e-6]), torch.zeros(3, 4)
    )
    assert built.threshold.item() == pytest.approx(0.75 * 0.45 + 0.25 * 0.7, rel=1e-5)
    expected = 0.75 * 0.25 + 0.25 * torch.tensor([1.7, 0.7, 0.4, 0.2]) / 3
    torch.testing.assert_close(built.frequency, expected, rtol=1e-5, atol=0)


def test_the_threshold_stays_below_its_limit():
    built = method(threshold_momentum=0.0)
    built.supervise(torch.tensor([[99.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 4))
    assert built.threshold.item() == pytest.approx(0.95)


def test_reliable_predictions_stay_and_others_are_mixed_with_the_source():
    built = method(threshold_momentum=1.0)
    built.threshold.fill_(0.8)
    built.frequency = torch.tensor([0.4, 0.2, 0.2, 0.2])  # thresholds 0.8 and, for the rarer classes, 0.4
    teacher = [[0.85, 0.05, 0.05, 0.05], [0.6, 0.2, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.1, 0.3, 0.3, 0.3]]
    source = [[0.1, 0.2, 0.3, 0.4]] * 4

    target = built.supervise(logits_of(*teacher), logits_of(*source)).exp()

    share = 0.6 / (0.6 + 0.4)
    mixed = [share * p + (1 - share) * q for p, q in zip(teacher[1], source[1], strict=True)]
    share = 0.3 / (0.3 + 0.4)
    mixed_last = [share * p + (1 - share) * q for p, q in zip(teacher[3], source[3], strict=True)]
    torch.testing.assert_close(target, torch.tensor([teacher[0], mixed, teacher[2], mixed_last]))
    assert built.diagnostics()["reliable"] == 2.0


def test_supervision_unlike_the_pasts_weighs_more():
    built = method(diversity_momentum=0.5)
    built.supervision = torch.tensor([1.0, 0.0, 0.0, 0.0])
    target = torch.tensor([[0.6, 0.8, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    weights = built.diversity(target)
    expected = torch.tensor([math.exp(0.4), math.e, 1.0])  # 1 - cosine is 0.4, 1 and 0
    torch.testing.assert_close(weights, 3 * expected / expected.sum())
    torch.testing.assert_close(built.supervision, 0.5 * torch.tensor([1.0, 0, 0, 0]) + 0.5 * target.mean(dim=0))


@pytest.mark.parametrize("count", [1, 3])
def test_alike_supervision_weighs_alike(count):
    weights = method().diversity(torch.tensor([[0.7, 0.1, 0.1, 0.1]]).expand(count, -1))
    torch.testing.assert_close(weights, torch.ones(count))


def test_alignment_draws_tensors_back_in_proportion_to_their_relative_drift():
    built = method(alignment=0.5)
    weight, other, zero = built.backbone.vit.head.weight, built.backbone.vit.norm.weight, built.backbone.vit.head.bias
    assert not zero.any()
    source = [value.clone() for value in built.initial_values([weight, other])]
    weight.data.mul_(1.8)
    other.data.mul_(1.2)
    zero.data.fill_(1.0)

    built.align()

    torch.testing.assert_close(weight.data, source[0] * (1 + 0.8 * 0.5))  # drifted most: half of the way
    torch.testing.assert_close(other.data, source[1] * (1 + 0.2 * (1 - 0.5 * 0.25)))  # a quarter of the drift
    torch.testing.assert_close(zero.data, torch.full((4,), 0.5))
    untouched = built.backbone.vit.patch_embed.proj.weight
    assert torch.equal(untouched.data, built.initial_values([untouched])[0])


def test_alignment_of_what_never_moved_changes_nothing():
    built = method(alignment=1.0)
    before = [p.detach().clone() for p in built.adapted]
    built.align()
    assert all(torch.equal(p, p0) for p, p0 in zip(built.adapted, before, strict=True))


def test_the_teacher_follows_the_network_before_it_is_aligned():
    built = method(lr=0.1, teacher_momentum=0.75, alignment=1.0, views="identity")
    plain = method(lr=0.1, teacher_momentum=0.75, alignment=0.0, views="identity")
    for each in (built, plain):
        each.forward_and_adapt(IMAGES)
    source = built.source.vit.head.weight
    assert torch.equal(built.teacher.vit.head.weight, plain.teacher.vit.head.weight)
    expected = 0.75 * source + 0.25 * plain.backbone.vit.head.weight.detach()
    torch.testing.assert_close(plain.teacher.vit.head.weight, expected)
    assert not torch.equal(built.backbone.vit.head.weight, plain.backbone.vit.head.weight)


def test_prediction_is_the_teachers_before_the_update():
    built = method(lr=0.1, teacher_momentum=0.5)
    for images in batches(2):
        with torch.no_grad():
            expected = built.teacher(images)
        assert torch.equal(built.forward_and_adapt(images), expected)
    assert not torch.equal(built.teacher.vit.head.weight, built.source.vit.head.weight)


def test_the_loss_is_the_weighted_mean_over_plain_and_augmented_images(monkeypatch):
    built = method(views="flip")
    with torch.no_grad():
        plain, mirrored = built.backbone(IMAGES), built.backbone(IMAGES.flip(-1))
        supervising = method()
        target = supervising.supervise(plain, plain)
        weights = supervising.diversity(target.exp())
        each = (symmetric_cross_entropy(plain, target) + symmetric_cross_entropy(mirrored, target)) / 2
    losses = []
    monkeypatch.setattr(built, "update", losses.append)
    built.forward_and_adapt(IMAGES)
    assert weights.max() > 1.1  # they matter
    assert losses[0].item() == pytest.approx((weights * each).mean().item(), rel=1e-5)


def test_a_step_lowers_the_loss():
    def loss_of(built, target, weights):
        with torch.no_grad():
            return (weights * symmetric_cross_entropy(built.backbone(IMAGES), target)).mean()

    built, other = method(lr=0.001, views="identity"), method()
    with torch.no_grad():
        target = other.supervise(built.backbone(IMAGES), built.backbone(IMAGES))
        weights = other.diversity(target.exp())
    before = loss_of(built, target, weights)
    built.forward_and_adapt(IMAGES)
    assert loss_of(built, target, weights) < before
