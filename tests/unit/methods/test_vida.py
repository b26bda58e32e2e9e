"""ViDA's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.helpers.methods import FAST
from tta_bench import testing
from tta_bench.functional import soft_cross_entropy, symmetric_cross_entropy
from tta_bench.methods import ViDA
from tta_bench.models.parts.adapters import (
    AdaptedLinear,
    BranchScales,
    adapter_parameters,
    branch_scales,
    inject_adapters,
)
from tta_bench.testing import batches, ready, toy_backbone

CIFAR = {"optimizer": "adam", "loss": "cross_entropy", "lr": 0.01, "adapter_lr": 0.02, "adapter_momentum": 0.999}


def rng():
    return torch.Generator().manual_seed(0)


def method(**settings):
    return ready(lambda: ViDA(toy_backbone(), **{**FAST["vida"], "views": "flip", **settings}))


def test_an_adapted_layer_adds_two_scaled_branches():
    linear = nn.Linear(2, 1)
    scales = BranchScales()
    layer = AdaptedLinear(linear, scales, 1, 2, rng())
    weights = {
        "linear.weight": [[1.0, 0.0]], "linear.bias": [10.0],
        "low.0.weight": [[0.0, 1.0]], "low.1.weight": [[2.0]],
        "high.0.weight": [[1.0, 0.0], [0.0, 1.0]], "high.1.weight": [[100.0, 1000.0]],
        "scales.low": 0.5, "scales.high": 2.0,
    }  # fmt: skip
    layer.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    assert layer(torch.tensor([[3.0, 4.0]])).item() == 3 + 10 + 0.5 * 2 * 4 + 2 * (300 + 4000)


def test_down_projections_start_with_standard_deviation_one_over_rank_and_up_projections_at_zero():
    layer = AdaptedLinear(nn.Linear(400, 10), BranchScales(), 4, 16, rng())
    assert layer.low[0].weight.std().item() == pytest.approx(1 / 4, rel=0.1)
    assert layer.high[0].weight.std().item() == pytest.approx(1 / 16, rel=0.1)
    assert not layer.low[1].weight.any()
    assert not layer.high[1].weight.any()


def test_every_linear_layer_of_the_attention_is_adapted_and_the_network_unchanged_at_first():
    network, images = toy_backbone(), batches(1)[0]
    before = network(images)
    inject_adapters(network, 1, 4, rng())
    adapted = [name for name, m in network.named_modules() if isinstance(m, AdaptedLinear)]
    assert adapted == [f"vit.blocks.{block}.attn.{layer}" for block in (0, 1) for layer in ("qkv", "proj")]
    assert torch.equal(network(images), before)


def test_all_parameters_are_trained_and_the_adapters_are_the_extra_ones():
    built = method()
    assert built.extra_parameters() == 2 * ((32 + 96) + (32 + 32)) * (1 + 4)
    source_size = sum(p.numel() for p in toy_backbone().parameters())
    assert built.trainable_parameters() == source_size + built.extra_parameters()


def test_without_warm_up_the_first_prediction_is_the_source_models():
    built, images = method(warmup_steps=0), batches(1)[0]
    torch.testing.assert_close(built.forward_and_adapt(images), toy_backbone()(images).detach(), rtol=0, atol=0)


LOGITS = torch.tensor([[[0.0, 1.0]], [[2.0, 1.0]]])  # two views of one image: variances 2 and 0, so U is 0.1


@pytest.mark.parametrize(
    ("threshold", "scales", "low", "high"),
    [(0.09, "paper", 0.9, 1.1), (0.11, "paper", 1.1, 0.9), (0.09, "released", 0.9, 1.0), (0.11, "released", 1.1, 1.0)],
)
def test_uncertainty_sets_the_scales_of_both_networks(threshold, scales, low, high):
    built = method(threshold=threshold, scales=scales)
    built.balance(LOGITS)
    for network in (built.backbone, built.teacher):
        factors = branch_scales(network)
        assert (factors.low.item(), factors.high.item()) == pytest.approx((low, high))
    assert built.diagnostics()["uncertainty"] == pytest.approx(0.1)


def test_one_view_has_no_variance():
    with pytest.raises(ValueError, match="needs at least 2, got 1"):
        ViDA(toy_backbone(), num_views=1)


def test_views_see_the_scales_of_the_batch_before():
    built, images = method(warmup_steps=20, warmup_lr=0.01), batches(1)[0]
    built.draw_views = lambda images: [images, images.flip(-1)]

    def uncertainty():
        return 0.1 * torch.stack([built.teacher(view) for view in built.draw_views(images)]).var(dim=0).mean().item()

    with_ones = uncertainty()
    branch_scales(built.teacher).low.fill_(1.5)
    expected = uncertainty()
    built.forward_and_adapt(images)
    assert built.diagnostics()["uncertainty"] == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(with_ones, rel=1e-3)


def test_network_and_adapters_are_averaged_at_their_own_rates():
    built = method(teacher_momentum=0.75, adapter_momentum=0.5, lr=0.0, adapter_lr=0.0)
    with torch.no_grad():
        for p in built.backbone.parameters():
            p.fill_(2.0)
        for p in built.teacher.parameters():
            p.fill_(4.0)
    built.forward_and_adapt(batches(1)[0])
    adapters = {id(p) for p in adapter_parameters(built.teacher)}
    for p in built.teacher.parameters():
        assert p.unique().item() == (3.0 if id(p) in adapters else 3.5)


def test_the_two_learning_rates_reach_their_parameters():
    built = method(lr=0.0, adapter_lr=0.1)
    before = {name: p.detach().clone() for name, p in built.backbone.named_parameters()}
    built.forward_and_adapt(batches(1)[0])
    moved = {name for name, p in built.backbone.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(".low." in name or ".high." in name for name in moved)


class Injected(ViDA):
    """Restores what ``masks`` says."""

    def draw_mask(self, rng, parameter):
        mask = torch.zeros(parameter.shape, dtype=torch.bool)
        mask.view(-1)[::2] = True
        return mask


def test_restored_weights_are_those_before_the_stream_for_every_parameter():
    built = ready(lambda: Injected(toy_backbone(), **FAST["vida"], **CIFAR, restore_probability=0.1))
    start = {name: p.detach().clone() for name, p in built.backbone.named_parameters()}
    for images in batches(2):
        built.forward_and_adapt(images)
    for name, p in built.backbone.named_parameters():
        assert torch.equal(p.flatten()[::2], start[name].flatten()[::2]), name
    for name in ("vit.cls_token", "vit.pos_embed", "vit.head.weight", "vit.blocks.0.attn.qkv.low.1.weight"):
        assert not torch.equal(built.backbone.get_parameter(name), start[name]), name


def test_a_mask_restores_with_its_probability():
    mask = method(restore_probability=0.1).draw_mask(rng(), torch.empty(300, 300))
    assert mask.float().mean().item() == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(
    ("loss", "function"), [("symmetric", symmetric_cross_entropy), ("cross_entropy", soft_cross_entropy)]
)
def test_a_small_step_lowers_the_loss(loss, function):
    built = method(loss=loss, lr=1e-4, adapter_lr=1e-4)
    images = batches(1)[0]
    with torch.no_grad():
        for p in built.backbone.parameters():  # away from the teacher, where the soft loss is at its minimum
            p.add_(torch.randn(p.shape, generator=rng()), alpha=0.02)
    target = built.forward_and_adapt(images)  # sets the scales
    before = function(built.backbone(images), target).mean()
    built.restart_optimizer()
    built.update(before)
    assert function(built.backbone(images), target).mean() < before


@pytest.mark.parametrize("check", [c for c in testing.CHECKS if "passes" not in c.__name__], ids=lambda c: c.__name__)
def test_the_cifar_variant_keeps_the_contract(check):
    check(lambda: ViDA(toy_backbone(), **{**FAST["vida"], "views": "flip"}, **CIFAR, restore_probability=0.1))
