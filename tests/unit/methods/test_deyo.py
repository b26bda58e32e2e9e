"""DeYO: its step by hand, and branches that the traces do not reach."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import softmax_entropy
from tta_bench.functional.patches import shuffle_patches
from tta_bench.methods import DeYO
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


class Told(DeYO):
    """DeYO with given differences instead of measured ones."""

    def plpd(self, images, logits):
        return self.differences[: len(images)].to(logits)


def told(differences, **settings):
    method = ready(lambda: Told(toy_backbone(), **{"entropy_margin": 1.0, "momentum": 0.0, **settings}).double())
    method.differences = torch.tensor(differences, dtype=torch.float64)
    return method


def test_the_step_is_that_of_the_weighted_entropy_of_the_selected_images():
    images = batches(3)[2].double()
    differences = [0.5, 0.1, -0.3, 0.9, 0.2, 0.3, 0.0, 0.19]
    method = told(differences, lr=0.1, weight_margin=0.4, plpd_threshold=0.2)
    before = [p.detach().clone() for p in method.adapted]
    entropy = softmax_entropy(method.backbone(images))
    loss = 0.0
    for i in (0, 3, 5):  # 0.2 is not above 0.2
        weight = 4**0.4 / math.exp(entropy[i].item()) + math.exp(differences[i])
        loss = loss + weight * entropy[i] / 3
    gradients = torch.autograd.grad(loss, method.adapted)
    method.forward_and_adapt(images)
    for p, start, gradient in zip(method.adapted, before, gradients, strict=True):
        torch.testing.assert_close(p.detach(), start - 0.1 * gradient)
    assert method.passes()[1] == 3 / 8


def test_a_small_step_lowers_the_entropy_of_the_selected_images():
    images = batches(3)[2].double()
    method = told([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], lr=1e-3)
    before = softmax_entropy(method.forward_and_adapt(images))[:4].mean()
    assert softmax_entropy(method.backbone(images))[:4].mean() < before


def test_the_difference_is_what_the_predicted_class_loses():
    method = ready(lambda: DeYO(toy_backbone(), grid=8))  # finer than the network's own patches
    images = batches(2)[1]
    logits = method.backbone(images).detach()
    state = method.rng.get_state()
    differences = method.plpd(images, logits)
    method.rng.set_state(state)
    shuffled = method.backbone(shuffle_patches(images, method.draw_order(8))).detach()
    for i, label in enumerate(logits.argmax(dim=1).tolist()):
        expected = logits[i].softmax(0)[label] - shuffled[i].softmax(0)[label]
        torch.testing.assert_close(differences[i], expected)
    assert differences.abs().max() > 1e-3


def test_orders_are_permutations_each_its_own():
    orders = ready(lambda: DeYO(toy_backbone(), grid=4)).draw_order(50)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(16).expand(50, 16))
    assert len({tuple(order) for order in orders.tolist()}) == 50


def test_without_a_sure_image_nothing_is_shuffled_and_nothing_moves():
    method = ready(lambda: DeYO(toy_backbone(), entropy_margin=1.0, plpd_threshold=-1.0))
    method.forward_and_adapt(batches(1)[0])  # now there is momentum
    before = [p.detach().clone() for p in method.adapted]
    draws = method.rng.get_state()
    method.hparams.entropy_margin = 0.0
    method.forward_and_adapt(batches(1)[0])
    assert method.passes() == (1.0, 0.0)
    assert torch.equal(method.rng.get_state(), draws)
    assert all(torch.equal(p, value) for p, value in zip(method.adapted, before, strict=True))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_early_norm_layers_of_residual_networks_are_adapted(norm, optimizer):
    settings = {"entropy_margin": 1.0, "plpd_threshold": -1.0, "optimizer": optimizer}
    method = ready(lambda: DeYO(toy_cnn(norm), **settings))
    late = {id(p) for name, p in method.backbone.named_parameters() if "layer4" in name}
    before = [p.detach().clone() for p in method.adapted]
    method.forward_and_adapt(batches(2)[1])
    assert late.isdisjoint(map(id, method.adapted))
    assert not all(torch.equal(p, value) for p, value in zip(method.adapted, before, strict=True))
