"""RoTTA: when it learns, from which images, and how strongly."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional import soft_cross_entropy
from tta_bench.methods import RoTTA
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def method(backbone=toy_backbone, **settings):
    return ready(lambda: RoTTA(backbone(), **{"memory_size": 64, "update_every": 5, "views": "flip", **settings}))


def losses_of(built):
    losses, update = [], built.update
    built.update = lambda loss: (losses.append(loss.item()), update(loss))
    return losses


@torch.no_grad()
def weighted_loss(built, weights):
    images = built.memory.images
    return float((weights * soft_cross_entropy(built.backbone(images.flip(-1)), built.teacher(images))).mean())


def test_an_update_in_mid_batch_learns_from_the_images_before_it():
    built = method(update_every=5)
    losses = losses_of(built)
    built.forward_and_adapt(batches(1)[0])
    assert built.passes() == (1 + 2 * 5 / 8, 5 / 8)
    assert len(losses) == 1
    assert int(built.waiting) == 3
    assert len(built.memory) == 8


def test_images_wait_over_batches():
    built = method(update_every=12)
    losses = losses_of(built)
    updates = []
    for images in batches(3):
        built.forward_and_adapt(images)
        updates.append(len(losses))
    assert updates == [0, 1, 2]
    assert int(built.waiting) == 0


def test_recent_images_weigh_more():
    built = method(update_every=8)
    losses = losses_of(built)
    before = method(update_every=9)  # the same memory, one image short of its update
    before.forward_and_adapt(batches(1)[0])
    age = before.memory.ages / 64
    expected = weighted_loss(before, torch.exp(-age) / (1 + torch.exp(-age)))
    built.forward_and_adapt(batches(1)[0])
    assert losses == [pytest.approx(expected, rel=1e-6)]
    assert set(before.memory.ages.tolist()) == set(map(float, range(1, 9)))


def test_a_small_step_lowers_the_loss():
    built, waiting = method(update_every=8, lr=1e-4, teacher_momentum=1.0), method(update_every=9)
    images = batches(1)[0]
    waiting.forward_and_adapt(images)
    built.forward_and_adapt(images)
    assert weighted_loss(built, 1.0) < weighted_loss(waiting, 1.0)


def test_predictions_are_the_teachers_before_the_batch_is_learned_from():
    built, images = method(update_every=4, teacher_momentum=0.0), batches(1)[0]
    with torch.no_grad():
        expected = built.teacher(images)
    torch.testing.assert_close(built.forward_and_adapt(images), expected)
    with torch.no_grad():
        assert not torch.allclose(built.teacher(images), expected)


def test_without_learning_the_source_model_predicts():
    built, source = method(lr=0.0), toy_backbone()
    for images in batches(4):
        torch.testing.assert_close(built.forward_and_adapt(images), source(images).detach())


def test_batch_norm_follows_the_memory_and_not_the_stream():
    built, images = method(lambda: toy_cnn("batch"), update_every=9, lr=0.0), batches(1)[0]
    with torch.no_grad():
        torch.testing.assert_close(built.forward_and_adapt(images), toy_cnn("batch")(images))
    source = toy_cnn("batch").network.bn1.running_mean
    assert torch.equal(built.teacher.network.bn1.mean, source)
    built.forward_and_adapt(batches(1, batch_size=1)[0])
    with torch.no_grad():
        stem = built.teacher.network.conv1(built.teacher.normalize(built.memory.images))
    expected = 0.95 * source + 0.05 * stem.mean(dim=(0, 2, 3))
    torch.testing.assert_close(built.teacher.network.bn1.mean, expected)
    assert not torch.equal(built.backbone.network.bn1.mean, expected)  # the student saw the flipped images
    built.reset()
    assert torch.equal(built.teacher.network.bn1.mean, source)


def test_group_norm_networks_adapt_too():
    built = method(lambda: toy_cnn("group"), lr=0.01)
    weights = [p.detach().clone() for p in built.adapted]
    for images in batches(2):
        assert torch.isfinite(built.forward_and_adapt(images)).all()
    assert not all(torch.equal(p, w) for p, w in zip(built.adapted, weights, strict=True))
