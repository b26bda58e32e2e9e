"""CoTTA: teacher, views and restoring, by their effects."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional import soft_cross_entropy, symmetric_cross_entropy
from tta_bench.methods import CoTTA
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def method(backbone=toy_backbone, **settings):
    return ready(lambda: CoTTA(backbone(), **{"lr": 0.01, "threshold": 0.0, "restore_probability": 0.0, **settings}))


@torch.no_grad()
def mean_loss(built, images, target):
    loss = {"symmetric": symmetric_cross_entropy, "cross_entropy": soft_cross_entropy}[built.hparams.loss]
    return float(loss(built.backbone(images), target).mean())


@pytest.mark.parametrize("loss", ["symmetric", "cross_entropy"])
def test_a_small_step_brings_the_student_nearer_to_the_teacher(loss):
    built, images = method(lr=1e-4, loss=loss, threshold=2.0, num_views=2), batches(1)[0]
    target = built.forward_and_adapt(images)
    after = mean_loss(built, images, target)
    built.reset()
    assert after < mean_loss(built, images, target)


def test_in_doubt_the_teacher_averages_logits_over_views():
    built, images = method(threshold=2.0, views="flip"), batches(1)[0]
    with torch.no_grad():
        expected = built.backbone(images.flip(-1))
    torch.testing.assert_close(built.forward_and_adapt(images), expected)
    assert built.passes() == (35, 1)


def test_views_differ_from_each_other():
    built, images = method(threshold=2.0, num_views=2), batches(1)[0]
    seen = []
    built.teacher.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    built.forward_and_adapt(images)
    assert len(seen) == 3
    assert torch.equal(seen[0], images)
    assert not torch.allclose(seen[1], seen[2], atol=0.05)


def test_a_sure_source_model_needs_no_views():
    built, images = method(), batches(1)[0]
    with torch.no_grad():
        expected = built.backbone(images)
    torch.testing.assert_close(built.forward_and_adapt(images), expected)
    assert built.passes() == (3, 1)


def test_the_threshold_looks_at_the_source_model_even_after_updates():
    built, images = method(lr=0.1), batches(1)[0]
    for _ in range(3):
        built.forward_and_adapt(images)
    with torch.no_grad():
        confidence = toy_backbone()(images).softmax(dim=1).amax(dim=1).mean()
    assert built.diagnostics()["anchor_confidence"] == pytest.approx(float(confidence))


def test_the_teacher_averages_the_weights_of_the_stepped_student():
    built, images = method(teacher_momentum=0.75), batches(1)[0]
    source = built.initial_values(built.adapted)
    built.forward_and_adapt(images)
    teacher = dict(built.teacher.named_parameters())
    names = {id(p): name for name, p in built.backbone.named_parameters()}
    for student, start in zip(built.adapted, source, strict=True):
        torch.testing.assert_close(teacher[names[id(student)]], 0.75 * start + 0.25 * student.detach())


def test_restoring_everything_leaves_the_source_student_and_a_moved_teacher():
    built, images = method(restore_probability=1.0), batches(1)[0]
    built.forward_and_adapt(images)
    source = built.initial_values(built.adapted)
    assert all(torch.equal(p, value) for p, value in zip(built.adapted, source, strict=True))
    assert not torch.equal(built.teacher.vit.head.weight, built.backbone.vit.head.weight)
    assert built.optimizer.state[built.adapted[0]]["momentum_buffer"].abs().sum() > 0


def test_masks_restore_their_share_and_differ_from_tensor_to_tensor():
    built, rng = method(restore_probability=0.1), torch.Generator().manual_seed(0)
    first, second = (built.draw_mask(rng, torch.empty(100, 100)) for _ in range(2))
    assert first.dtype is torch.bool
    assert float(first.double().mean()) == pytest.approx(0.1, abs=0.015)  # five standard deviations
    assert not torch.equal(first, second)


def test_class_token_and_positions_are_frozen_and_shared():
    built = method()
    assert built.teacher.vit.cls_token is built.backbone.vit.cls_token
    assert not built.backbone.vit.pos_embed.requires_grad
    assert built.trainable_parameters() == sum(
        p.numel() for name, p in built.backbone.named_parameters() if name.endswith(("weight", "bias"))
    )
    assert built.extra_parameters() == 0


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_networks_adapt_too(norm):
    built = method(lambda: toy_cnn(norm), threshold=2.0, num_views=2, restore_probability=0.01)
    for images in batches(3):
        assert torch.isfinite(built.forward_and_adapt(images)).all()
    assert not torch.equal(built.teacher.network.fc.weight, built.anchor.network.fc.weight)
