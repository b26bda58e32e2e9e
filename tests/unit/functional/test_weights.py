"""Arithmetic on weights, and the selection of adapted weights."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tta_bench.functional import (
    adapt_norm_layers,
    adapt_weights_and_biases,
    ema_update,
    lerp,
    norm_layers,
    sam_ascend,
    sam_return,
    stochastic_restore,
)
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.testing import toy_backbone, toy_cnn


def linear(value: float) -> nn.Linear:
    layer = nn.Linear(2, 1)
    nn.init.constant_(layer.weight, value)
    nn.init.constant_(layer.bias, -value)
    return layer


def parameters(*values):
    return [nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in values]


def deep_vit(width: int = 8) -> VisionTransformer:
    return VisionTransformer(img_size=16, patch_size=8, embed_dim=width, depth=12, num_heads=2, num_classes=3)


# ---- averages --------------------------------------------------------------------------------------------------


def test_a_teacher_moves_by_one_minus_momentum():
    teacher, student = linear(1.0), linear(2.0)
    ema_update(teacher, student, momentum=0.75)
    assert teacher.weight.tolist() == [[1.25, 1.25]]
    assert teacher.bias.tolist() == [-1.25]
    assert student.weight.tolist() == [[2.0, 2.0]]


def test_parameters_that_teacher_and_student_share_are_left_alone():
    student = nn.Sequential(linear(1.0), linear(2.0))
    teacher = nn.Sequential(linear(0.0), student[1])
    version = student[1].weight._version
    ema_update(teacher, student, momentum=0.5)
    assert student[1].weight._version == version
    assert teacher[0].weight.tolist() == [[0.5, 0.5]]


def test_a_teacher_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ema_update(nn.Sequential(linear(0.0), linear(0.0)), linear(0.0), momentum=0.5)


@given(st.floats(0, 1), st.floats(-5, 5), st.floats(-5, 5), st.integers(1, 6))
def test_repeated_averaging_approaches_geometrically(momentum, start, end, times):
    (teacher,), (student,) = parameters([start]), parameters([end])
    for _ in range(times):
        lerp([teacher], [student], 1 - momentum)
    assert teacher.item() == pytest.approx(end + momentum**times * (start - end), abs=1e-9)


def test_lerp_of_nothing_is_nothing():
    lerp([], [], 0.5)  # the fused kernel refuses empty lists


# ---- restoring -------------------------------------------------------------------------------------------------


def test_masked_weights_return_to_the_source_and_the_others_stay():
    moved, source = parameters([1.0, 2.0, 3.0], [4.0]), parameters([0.0, 0.0, 0.0], [0.0])
    masks = iter([torch.tensor([True, False, True]), torch.tensor([False])])
    asked = []

    def draw(p):
        asked.append(p)
        return next(masks)

    stochastic_restore(moved, source, draw)
    assert [p.tolist() for p in moved] == [[0.0, 2.0, 0.0], [4.0]]
    assert all(a is p for a, p in zip(asked, moved, strict=True))


# ---- sharpness -------------------------------------------------------------------------------------------------


def test_sam_climbs_by_rho_along_the_gradient_over_all_tensors():
    weights = parameters([1.0, 1.0], [1.0])
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0]).double(), torch.tensor([-4.0]).double()  # norm 5
    before = sam_ascend(weights, rho=0.5)
    torch.testing.assert_close(weights[0].detach(), torch.tensor([1.3, 1.0]).double())
    torch.testing.assert_close(weights[1].detach(), torch.tensor([0.6]).double())
    assert [value.tolist() for value in before] == [[1.0, 1.0], [1.0]]


def test_sam_returns_exactly_and_keeps_the_new_gradients():
    weights = parameters([0.1, 0.2])
    weights[0].grad = torch.tensor([1.0, 2.0]).double()
    start = weights[0].detach().clone()
    before = sam_ascend(weights, rho=0.05)
    weights[0].grad = torch.tensor([7.0, 7.0]).double()
    sam_return(weights, before)
    assert torch.equal(weights[0].detach(), start)
    assert weights[0].grad.tolist() == [7.0, 7.0]


def test_sam_leaves_weights_without_gradient_and_survives_a_zero_gradient():
    weights = parameters([1.0], [2.0])
    weights[1].grad = torch.zeros(1).double()
    sam_ascend(weights, rho=0.5)
    assert [p.item() for p in weights] == [1.0, 2.0]


# ---- what is adapted -------------------------------------------------------------------------------------------


def test_early_norm_layers_of_a_twelve_block_transformer_are_those_of_nine_blocks():
    vit = deep_vit()
    assert len(norm_layers(vit)) == 25
    early = norm_layers(vit, "early")
    assert early == [norm for block in vit.blocks[:9] for norm in (block.norm1, block.norm2)]
    width = 768  # of ViT-B
    assert sum(p.numel() for layer in early for p in layer.parameters()) // 8 * width == 27_648


def test_a_wrapped_transformer_has_the_same_early_layers():
    vit = deep_vit()
    assert norm_layers(ViTBackbone(vit, (0.5,) * 3, (0.5,) * 3), "early") == norm_layers(vit, "early")


def test_a_shallow_transformer_keeps_all_blocks_but_not_the_final_norm():
    vit = toy_backbone().vit
    assert norm_layers(vit, "early") == [norm for block in vit.blocks for norm in (block.norm1, block.norm2)]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_early_norm_layers_of_a_residual_network_skip_its_last_stage(norm):
    network = toy_cnn(norm).network
    late = norm_layers(network.layer4)
    assert late
    assert norm_layers(network, "early") == [layer for layer in norm_layers(network) if layer not in late]
    assert norm_layers(toy_cnn(norm), "early")  # the prefix of a backbone changes nothing


def test_norm_layers_without_affine_weights_are_passed_over():
    assert norm_layers(nn.Sequential(nn.LayerNorm(2, elementwise_affine=False))) == []


def test_adapting_norm_layers_freezes_the_rest():
    backbone = toy_backbone()
    trainable = adapt_norm_layers(backbone, "early")
    assert [p for p in backbone.parameters() if p.requires_grad] == trainable
    assert sum(p.numel() for p in trainable) == 4 * 2 * 32


def test_adapting_norm_layers_changes_no_prediction_of_a_transformer():
    backbone = toy_backbone()
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = backbone(images).detach()
    adapt_norm_layers(backbone)
    assert torch.equal(backbone(images).detach(), before)


def test_adapting_weights_and_biases_leaves_tokens_and_positions():
    backbone = toy_backbone()
    adapt_weights_and_biases(backbone)
    frozen = [name for name, p in backbone.named_parameters() if not p.requires_grad]
    assert frozen == ["vit.cls_token", "vit.pos_embed"]


def test_adapting_a_batch_norm_network_normalises_by_the_batch():
    backbone = toy_cnn("batch")
    reference = copy.deepcopy(backbone.network).train()  # nothing in it but batch norm knows the mode
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = reference(backbone.normalize(images))
    for adapt in (adapt_norm_layers, adapt_weights_and_biases):
        other = copy.deepcopy(backbone)
        adapt(other)
        torch.testing.assert_close(other(images), expected)
