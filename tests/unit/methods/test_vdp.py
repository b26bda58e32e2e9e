"""VDP's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tta_bench.functional import symmetric_cross_entropy
from tta_bench.methods import VDP
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn, toy_data
from tta_bench.types import SourceNeed

IMAGES = batches(1)[0]


def method(**settings):
    cells = {"grid": 16, "frame_width": 1}  # a cell for each pixel of the toy images
    return ready(lambda: VDP(toy_backbone(), **{**cells, "warmup_steps": 0, **settings}))


def logits_of(confidence):
    """Two images whose mean confidence among two classes is the given one."""
    return torch.tensor([[math.log(confidence / (1 - confidence)), 0.0]]).expand(2, 2).double()


@pytest.mark.parametrize(("frame_width", "cells"), [(1, 60), (4, 192), (8, 256)])
def test_the_prompts_are_a_frame(frame_width, cells):
    built = method(frame_width=frame_width)
    assert built.specific.shape == built.agnostic.shape == (3, cells)
    assert built.extra_parameters() == built.trainable_parameters() == 2 * 3 * cells


def test_the_default_has_the_published_size_on_any_network():
    for backbone in (toy_backbone(), toy_cnn()):
        built = VDP(backbone)
        built.configure_model()
        assert built.extra_parameters() == built.trainable_parameters() == 1800


@pytest.mark.parametrize("frame_width", [0, 9])
def test_a_frame_that_does_not_fit_is_refused(frame_width):
    with pytest.raises(ValueError, match=f"a frame of {frame_width} cells does not fit a grid of 16"):
        method(frame_width=frame_width)


def test_the_warm_up_lowers_the_loss_on_the_source_by_the_agnostic_prompt_alone():
    built = method(warmup_steps=30, warmup_lr=0.01)
    stored, labels = next(iter(toy_data().source_dataloader(SourceNeed.LABELED, batch_size=64)))
    images = built.backbone.prepare(stored)
    with torch.no_grad():
        before = F.cross_entropy(built.backbone(images), labels)
        after = F.cross_entropy(built.backbone(built.prompted(images, built.agnostic)), labels)
    assert after < 0.9 * before
    assert not built.specific.any()
    assert not built.importance.any()
    for follower in (built.teacher_agnostic, built.anchor):
        assert torch.equal(follower, built.agnostic)
    assert not any(state.get("step", 0) for state in built.optimizer.state.values())


def test_the_first_prediction_is_that_of_the_warmed_up_prompt():
    built = method(warmup_steps=3, warmup_lr=0.1)
    with torch.no_grad():
        expected = built.backbone(built.prompted(IMAGES, built.agnostic))
    assert torch.equal(built.forward_and_adapt(IMAGES), expected)
    assert not torch.equal(expected, built.backbone(IMAGES))


def test_without_the_source_it_refuses():
    with pytest.raises(RuntimeError, match="VDP needs the source"):
        VDP(toy_backbone())(IMAGES)


def test_a_prompt_is_added_to_the_border_of_each_image():
    built = method(frame_width=4)
    values = torch.arange(3.0)[:, None].expand(3, 192)
    added = built.prompted(IMAGES, values) - IMAGES
    expected = torch.arange(3.0)[:, None, None].repeat(1, 16, 16)
    expected[:, 4:12, 4:12] = 0
    torch.testing.assert_close(added, expected.expand(8, -1, -1, -1))


def test_prediction_is_that_of_the_teachers_prompts_before_the_update():
    built = method(teacher_momentum=0.5, lr_specific=0.1, lr_agnostic=0.1)
    for images in batches(3):
        with torch.no_grad():
            expected = built.backbone(built.prompted(images, built.teacher_specific + built.teacher_agnostic))
        assert torch.equal(built.forward_and_adapt(images), expected)
    assert built.teacher_agnostic.any()


def test_the_teachers_prompts_follow_the_students():
    built = method(teacher_momentum=0.75)
    built.forward_and_adapt(IMAGES)
    torch.testing.assert_close(built.teacher_specific, 0.25 * built.specific.detach())
    torch.testing.assert_close(built.teacher_agnostic, 0.25 * built.agnostic.detach())


def gradient_of_both(built, images, target):
    prompt = (built.specific + built.agnostic).detach().requires_grad_()
    symmetric_cross_entropy(built.backbone(built.prompted(images, prompt)), target).mean().backward()
    return prompt.grad


def test_the_first_step_moves_each_prompt_by_its_rate_and_credits_what_lowered_the_loss():
    built = method(lr_specific=1e-2, lr_agnostic=1e-3)
    with torch.no_grad():
        target = built.backbone(IMAGES)
    gradient = gradient_of_both(built, IMAGES, target)
    assert gradient.abs().min() > 0  # Adam then steps by the rate
    built.forward_and_adapt(IMAGES)
    torch.testing.assert_close(built.specific.detach(), -1e-2 * gradient.sign(), rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(built.agnostic.detach(), -1e-3 * gradient.sign(), rtol=1e-2, atol=1e-6)
    torch.testing.assert_close(built.credit, 1e-3 * gradient.abs(), rtol=1e-2, atol=1e-9)


def test_the_penalty_holds_the_agnostic_prompt_and_earns_no_credit():
    built = method(penalty=3.0)
    built.agnostic.data.fill_(0.1)
    built.anchor.fill_(0.3)
    built.importance.fill_(5.0)
    with torch.no_grad():
        target = built.backbone(IMAGES)
    gradient = gradient_of_both(built, IMAGES, target)

    built.forward_and_adapt(IMAGES)

    torch.testing.assert_close(built.specific.grad, gradient)
    torch.testing.assert_close(built.agnostic.grad, gradient + 2 * 3 * 5 * (0.1 - 0.3))
    torch.testing.assert_close(built.credit, -gradient * (built.agnostic.detach() - 0.1))


def test_a_jump_closes_the_books_of_a_domain():
    built = method(damping=0.01)
    built.forward_and_adapt(IMAGES)  # the optimizer has moments now
    built.confidence = torch.tensor([0.9])
    built.agnostic.data.fill_(0.5)
    built.anchor.fill_(0.2)
    built.importance.fill_(1.0)
    built.credit.fill_(0.4)
    built.credit[0, 0] = -0.4

    built.notice_change(logits_of(0.6))

    expected = torch.full((3, 60), 1 + 0.4 / (0.3**2 + 0.01))
    expected[0, 0] = 1.0  # its moves raised the loss
    torch.testing.assert_close(built.importance, expected)
    torch.testing.assert_close(built.anchor, built.agnostic.detach())
    assert not built.credit.any()
    assert not built.specific.any()
    assert not built.teacher_specific.any()
    assert built.teacher_agnostic.any()
    assert not built.optimizer.state
    assert built.diagnostics() == {"confidence": pytest.approx(0.6), "domain_changed": 1.0}


@pytest.mark.parametrize(
    ("confidences", "changed"),
    [((0.9, 0.85), False), ((0.9, 0.79), True), ((0.7, 0.85), True), ((0.9, 0.81, 0.72), False), ((0.6,), False)],
)
def test_only_a_jump_between_two_batches_is_a_change(confidences, changed):
    built = method(jump=0.1)
    for confidence in confidences:
        built.notice_change(logits_of(confidence))
    assert built.diagnostics()["domain_changed"] == changed


def test_a_step_lowers_the_loss():
    built = method(lr_specific=1e-3, lr_agnostic=1e-4)
    with torch.no_grad():
        target = built.backbone(IMAGES)
        before = symmetric_cross_entropy(target, target).mean()
    built.forward_and_adapt(IMAGES)
    with torch.no_grad():
        logits = built.backbone(built.prompted(IMAGES, built.specific + built.agnostic))
    assert symmetric_cross_entropy(logits, target).mean() < before
