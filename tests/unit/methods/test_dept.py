"""DePT's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.methods import FAST
from tta_bench.methods import DePT
from tta_bench.methods.dept import Seen, over_stages, strong_view
from tta_bench.models.parts.stage_prompts import ProjectionHead, encode_prompted, project, stage_prompts
from tta_bench.testing import batches, ready, toy_backbone


def rng():
    return torch.Generator().manual_seed(0)


def method(**settings):
    return ready(lambda: DePT(toy_backbone(), **{**FAST["dept"], **settings}))


def seen(logits=None, projection=None, prompts=None):
    return Seen(
        torch.zeros(1, 4) if logits is None else logits,
        torch.zeros(1, 16) if projection is None else projection,
        torch.ones(1, 2, 2, 16) if prompts is None else prompts,
    )


def test_a_projection_is_a_cosine():
    head = ProjectionHead(2, 16, rng())
    x = torch.randn(5, 2, generator=rng())
    hidden = F.gelu(x @ head.mlp[0].weight.T + head.mlp[0].bias)
    inner = hidden @ head.mlp[2].weight.T + head.mlp[2].bias
    cosine = F.cosine_similarity(inner[:, None], head.directions[None], dim=-1)
    torch.testing.assert_close(head(x), cosine)
    assert inner.shape == (5, 2)


def test_prompts_are_drawn_by_glorots_rule():
    built = DePT(toy_backbone(), stages=2, prompt_length=500, head_width=8)
    built.configure_model()
    bound = math.sqrt(6 / (500 + 32))
    prompts = stage_prompts(built.backbone).prompts
    assert 0.99 * bound < prompts.abs().max() <= bound
    assert prompts.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_prompts_heads_and_classifier_are_trained():
    built = method()
    trained = {name for name, p in built.backbone.named_parameters() if p.requires_grad}
    assert {name for name in trained if not name.startswith("stage_prompts.")} == {"vit.head.weight", "vit.head.bias"}
    head = (32 * 16 + 16) + (16 * 2 + 2) + 16 * 2
    assert built.extra_parameters() == 2 * 2 * 32 + 2 * head


def test_each_stages_prompts_go_through_its_own_head_and_features_through_the_last():
    built = method()
    seen = encode_prompted(built.backbone, batches(1)[0])
    projection, prompts = project(built.backbone, seen)
    heads = stage_prompts(built.backbone).heads
    torch.testing.assert_close(projection, heads[1](seen.features))
    torch.testing.assert_close(prompts[3, 0, 1], heads[0](seen.outputs[0][3, 1]))
    torch.testing.assert_close(prompts[3, 1, 0], heads[1](seen.outputs[1][3, 0]))


def test_late_stages_weigh_more():
    weighted = over_stages(torch.tensor([1.0, 10.0]))
    assert weighted.item() == pytest.approx((1 + 10 * math.e) / (1 + math.e))


def test_projected_features_are_distilled_with_two_temperatures_and_a_center():
    built = method(feature_weight=2.0, prompt_weight=0.0)
    built.center = torch.tensor([0.5] + [0.0] * 15)
    student, teacher = (torch.zeros(1, 16) for _ in range(2))
    student[0, 0], teacher[0, 0], teacher[0, 1] = 0.1 * math.log(3), 0.5, 0.07 * math.log(5)
    target = torch.tensor([1.0, 5.0] + [1.0] * 14) / 20  # softmax of (teacher - center) / 0.07
    log_p = torch.tensor([3.0] + [1.0] * 15).div(18).log()  # log softmax of student / 0.1
    loss = built.distilled(seen(projection=student), seen(projection=teacher))
    torch.testing.assert_close(loss, -2 * (target * log_p).sum())
    torch.testing.assert_close(built.center, 0.9 * torch.tensor([0.5] + [0.0] * 15) + 0.1 * teacher[0])


def test_the_stream_starts_with_a_center_of_zero_whatever_the_warm_up_saw():
    built = method(warmup_steps=3)
    assert not built.center.any()
    built.forward_and_adapt(batches(1)[0])
    assert built.center.any()
    built.reset()
    assert not built.center.any()


def test_the_first_step_of_the_warm_up_is_down_the_distillation():
    """No label reaches the projection heads, so their step is that of the distillation, between two views."""
    settings = {**FAST["dept"], "warmup_steps": 1, "warmup_lr": 1e-3, "source_spread_weight": 0.0}
    built, by_hand = (DePT(toy_backbone(), **settings) for _ in range(2))
    images, labels = batches(1)[0], torch.arange(8) % 4
    built.fit_source([(images, labels)])
    by_hand.configure_model()
    views = [strong_view(images, labels, by_hand.setup_rng, crop=0.6)[0] for _ in range(2)]
    by_hand.distilled(*by_hand.see(*views)).backward()
    for after, before in zip(*(stage_prompts(m.backbone).heads.parameters() for m in (built, by_hand)), strict=True):
        gradient = before.grad + 1e-4 * before  # and weight decay
        torch.testing.assert_close(after - before, -1e-3 * 1.9 * gradient)  # Nesterov's first step, momentum 0.9


def test_prompts_are_distilled_by_cosine_distance():
    built = method(feature_weight=0.0, prompt_weight=2.0)
    student, teacher = (torch.zeros(1, 2, 2, 16) for _ in range(2))
    student[..., 0] = 3.0
    teacher[0, 0, :, 0] = 7.0  # stage 0: alike
    teacher[0, 1, 0, 1] = 1.0  # stage 1: one prompt orthogonal, one opposite
    teacher[0, 1, 1, 0] = -1.0
    loss = built.distilled(seen(prompts=student), seen(prompts=teacher))
    assert loss.item() == pytest.approx(2 * (1 + 2) / 2 * math.e / (1 + math.e))


def test_closeness_is_minus_the_mean_distance_of_all_pairs():
    prompts = torch.zeros(1, 2, 2, 16)
    prompts[0, 0, :, 0] = 1.0  # stage 0: the same twice
    prompts[0, 1, 0, 0] = prompts[0, 1, 1, 1] = 1.0  # stage 1: orthogonal, distances 0, 1, 1, 0
    assert method().closeness(seen(prompts=prompts)).item() == pytest.approx(-0.5 * math.e / (1 + math.e))


def test_the_loss_is_the_weighted_sum():
    built = method(feature_weight=0.0, prompt_weight=0.0, diversity_weight=2.0, spread_weight=0.0)
    logits = torch.tensor([[50.0, 0.0, 0.0, 0.0], [0.0, 50.0, 0.0, 0.0]])
    loss = built.loss(seen(logits=logits), seen(), torch.tensor([0, 0]))
    assert loss.item() == pytest.approx(50 / 2 - 2 * math.log(2), rel=1e-5)


def test_pseudo_labels_are_those_of_the_nearest_entries():
    built = method(neighbors=3)
    logits = torch.tensor([[0.0, 0.0, 0.0, 9.0]])
    towards = torch.zeros(5, 32)
    towards[0, 0] = towards[1, 0] = towards[2, 0] = 1.0
    towards[3, 1] = towards[4, 2] = 1.0
    built.memory_features = towards[:2]
    built.memory_probabilities = torch.tensor([[0.0, 0.4, 0.6, 0.0], [0.0, 0.4, 0.6, 0.0]])
    assert built.pseudo_labels(100 * towards[:1], logits).tolist() == [3]  # fewer entries than neighbours
    built.memory_features = towards
    certain = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    built.memory_probabilities = torch.cat([built.memory_probabilities, certain])
    assert built.pseudo_labels(100 * towards[:1], logits).tolist() == [1]  # 1.8 of 3, although two prefer class 2


def test_a_memory_without_room_for_the_neighbours_is_refused():
    with pytest.raises(ValueError, match="a memory of 2 images never holds 3 neighbors"):
        DePT(toy_backbone(), memory_size=2, neighbors=3)


def test_the_memory_keeps_the_teachers_view_of_the_last_images():
    built = method(memory_size=20)
    stream = batches(3)
    for images in stream[:2]:
        built.forward_and_adapt(images)
    assert len(built.memory_features) == 16
    oldest = built.memory_features[4].clone()
    built.forward_and_adapt(stream[2])
    assert len(built.memory_features) == len(built.memory_probabilities) == 20
    assert torch.equal(built.memory_features[0], oldest)
    with torch.no_grad():
        features = encode_prompted(built.teacher, stream[2]).features
    torch.testing.assert_close(built.memory_features[-8:], F.normalize(features, dim=1))
    torch.testing.assert_close(built.memory_probabilities[-8:], built.teacher.classify(features).softmax(dim=1))


def test_the_teacher_follows_before_the_step():
    built = method(teacher_momentum=0.75, lr=0.1)
    with torch.no_grad():
        stage_prompts(built.backbone).prompts.fill_(2.0)
        stage_prompts(built.teacher).prompts.fill_(4.0)
    built.forward_and_adapt(batches(1)[0])
    assert (stage_prompts(built.teacher).prompts == 3.5).all()
    assert not (stage_prompts(built.backbone).prompts == 2.0).any()


def test_gradients_are_clipped_parameter_by_parameter_except_in_the_heads():
    built = method(clip=0.5, lr=1.0, weight_decay=0.0)
    parts, classifier = stage_prompts(built.backbone), built.backbone.vit.head
    built.update(7 * (parts.prompts.sum() + classifier.weight.sum() + parts.heads[0].directions.sum()))
    for p in (parts.prompts, classifier.weight):
        assert p.grad.norm().item() == pytest.approx(0.5, rel=1e-4)
    assert (parts.heads[0].directions.grad == 7).all()


def test_the_prediction_is_the_students_for_the_image_itself():
    built, images = method(lr=0.1), batches(1)[0]
    expected = built.backbone.classify(encode_prompted(built.backbone, images).features).detach()
    assert torch.equal(built.forward_and_adapt(images), expected)


def test_student_and_teacher_see_views_of_their_own():
    built, images = method(), batches(1)[0]
    seen = []
    built.see = lambda *views: (seen.extend(views), DePT.see(built, *views))[1]
    built.forward_and_adapt(images)
    assert len(seen) == 2
    assert not torch.equal(seen[0], seen[1])


def test_a_small_step_lowers_the_loss():
    built, images = method(lr=1e-3), batches(1)[0]
    labels = torch.arange(8) % 4
    views = [built.draw_view(images, labels)[0] for _ in range(2)]

    def loss():
        built.center = torch.zeros(16)
        return built.loss(*built.see(*views), labels)

    before = loss()
    built.update(before)
    assert loss() < before
