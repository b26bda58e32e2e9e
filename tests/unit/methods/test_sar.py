"""SAR: its step by hand, and branches that the traces do not reach."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import softmax_entropy
from tta_bench.methods import SAR
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def values(method):
    return [p.detach().clone() for p in method.adapted]


def unchanged(method, before):
    return all(torch.equal(p, value) for p, value in zip(method.adapted, before, strict=True))


def gradients(method, images, rows=slice(None)):
    return torch.autograd.grad(softmax_entropy(method.backbone(images))[rows].mean(), method.adapted)


def test_the_step_takes_the_gradient_where_the_weights_were_pushed_to():
    images, rho, lr = batches(3)[2].double(), 0.3, 0.1
    settings = {"lr": lr, "momentum": 0.0, "rho": rho, "entropy_margin": 1.0, "reset_threshold": 0.0}
    method = ready(lambda: SAR(toy_backbone(), **settings).double())
    other = ready(lambda: SAR(toy_backbone(), **settings).double())
    before, uphill = values(other), gradients(other, images)
    length = math.sqrt(sum(float((g**2).sum()) for g in uphill))
    for p, g in zip(other.adapted, uphill, strict=True):
        p.data += rho * g / length
    expected = [p - lr * g for p, g in zip(before, gradients(other, images), strict=True)]
    method.forward_and_adapt(images)
    for p, value in zip(method.adapted, expected, strict=True):
        torch.testing.assert_close(p.detach(), value)


def test_a_small_step_lowers_the_entropy_of_reliable_images():
    images = batches(3)[2]
    method = ready(lambda: SAR(toy_backbone(), lr=1e-3, entropy_margin=0.1, reset_threshold=0.0))
    entropy = softmax_entropy(method.forward_and_adapt(images))
    reliable = entropy < 0.1 * math.log(4)
    assert 0 < reliable.sum() < len(images)
    assert softmax_entropy(method.backbone(images))[reliable].mean() < entropy[reliable].mean()


@pytest.mark.parametrize(("choice", "moves"), [("skip", False), ("coast", True)])
def test_without_a_reliable_image_only_coasting_moves(choice, moves):
    method = ready(lambda: SAR(toy_backbone(), entropy_margin=1.0, reset_threshold=0.0, none_reliable=choice))
    method.forward_and_adapt(batches(1)[0])  # now there is momentum
    before, average = values(method), method.entropy_average.clone()
    method.hparams.entropy_margin = 0.0
    method.forward_and_adapt(batches(1)[0])
    assert unchanged(method, before) is not moves
    assert torch.equal(method.entropy_average, average)
    assert method.passes() == (2 if moves else 1, 0.0)


def test_images_that_the_ascent_makes_unreliable_teach_nothing():
    method = ready(lambda: SAR(toy_backbone(), lr=0.01, entropy_margin=1.0, reset_threshold=0.0))
    images = batches(2)[1]
    method.forward_and_adapt(images)
    before, average = values(method), method.entropy_average.clone()
    entropy = softmax_entropy(method.backbone(images).detach())
    method.hparams.entropy_margin = float(entropy.min() + 1e-6) / math.log(4)  # the surest image alone
    method.forward_and_adapt(images)
    assert method.diagnostics()["reliable"] == 1.0
    assert method.diagnostics()["reliable_twice"] == 0.0
    assert unchanged(method, before)
    assert torch.equal(method.entropy_average, average)


def test_the_average_starts_at_the_first_loss_and_then_takes_a_tenth():
    method = ready(lambda: SAR(toy_backbone(), lr=0.0, rho=0.0, entropy_margin=1.0, reset_threshold=0.0))
    first, second = batches(2)
    method.forward_and_adapt(first)
    a = softmax_entropy(method.backbone(first).detach()).mean()
    torch.testing.assert_close(method.entropy_average, a[None])
    method.forward_and_adapt(second)
    b = softmax_entropy(method.backbone(second).detach()).mean()
    torch.testing.assert_close(method.entropy_average, (0.9 * a + 0.1 * b)[None])


@pytest.mark.parametrize(("choice", "left"), [("cleared", 0), ("kept", 1)])
def test_a_collapsed_model_returns_to_the_source(choice, left):
    settings = {"entropy_margin": 1.0, "reset_threshold": 9.0, "average_after_recovery": choice}
    method = ready(lambda: SAR(toy_backbone(), **settings))
    source = values(method)
    method.forward_and_adapt(batches(1)[0])
    assert method.diagnostics()["recovered"] == 1.0
    assert unchanged(method, source)
    assert len(method.entropy_average) == left


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_early_norm_layers_of_residual_networks_are_adapted(norm, optimizer):
    settings = {"entropy_margin": 1.0, "reset_threshold": 0.0, "optimizer": optimizer}
    method = ready(lambda: SAR(toy_cnn(norm), **settings))
    late = {id(p) for name, p in method.backbone.named_parameters() if "layer4" in name}
    before = values(method)
    method.forward_and_adapt(batches(2)[1])
    assert late.isdisjoint(map(id, method.adapted))
    assert not all(torch.equal(p, value) for p, value in zip(method.adapted, before, strict=True))
