"""MEMO: its loss and step by hand, and that images are independent."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional import softmax_entropy
from tta_bench.functional.augmix import augmix_views
from tta_bench.methods import MEMO
from tta_bench.methods.memo import marginal_entropy
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def test_marginal_entropy_is_that_of_the_mean_prediction():
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.5]]).double()
    p = logits.softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(marginal_entropy(logits), -(p * p.log()).sum())


def test_marginal_entropy_of_certain_predictions_has_finite_gradients():
    logits = torch.tensor([[1000.0, 0.0], [1000.0, 0.0]], requires_grad=True)
    loss = marginal_entropy(logits)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def first_views(image, num_views, seed=0):
    return augmix_views(image, num_views, torch.Generator().manual_seed(seed))


def test_the_prediction_is_that_of_one_step_from_the_source():
    image = batches(2)[1][:1].double()
    method = ready(lambda: MEMO(toy_backbone(), optimizer="sgd", lr=0.1, weight_decay=0.0, num_views=4).double())
    network = ready(lambda: MEMO(toy_backbone()).double()).backbone
    loss = marginal_entropy(network(first_views(image, 4)))
    for p, gradient in zip(network.parameters(), torch.autograd.grad(loss, list(network.parameters())), strict=True):
        p.data -= 0.1 * gradient
    torch.testing.assert_close(method.forward_and_adapt(image), network(image).detach())


def test_a_small_step_lowers_the_marginal_entropy_of_the_views():
    image = batches(2)[1][:1]
    method = ready(lambda: MEMO(toy_backbone(), num_views=8))
    views = first_views(image, 8)
    before = marginal_entropy(method.backbone(views).detach())
    method.forward_and_adapt(image)
    assert marginal_entropy(method.backbone(views).detach()) < before


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_an_image_is_predicted_as_if_it_were_the_only_one(optimizer):
    first, second = batches(2, batch_size=1)
    method = ready(lambda: MEMO(toy_backbone(), optimizer=optimizer, lr=0.01, num_views=4))
    method.forward_and_adapt(first)
    method.rng.manual_seed(0)
    after_another = method.forward_and_adapt(second)
    method.reset()
    assert torch.equal(method.forward_and_adapt(second), after_another)


def test_a_batch_is_its_images_one_by_one():
    images = batches(2)[1][:3]
    method = ready(lambda: MEMO(toy_backbone(), lr=0.01, num_views=4))
    together = method.forward_and_adapt(images)
    method.reset()
    torch.testing.assert_close(torch.cat([method.forward_and_adapt(image) for image in images.split(1)]), together)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_networks_are_adapted(norm):
    image = batches(2)[1][:1]
    method = ready(lambda: MEMO(toy_cnn(norm), lr=0.001, num_views=4))
    source = method.backbone(image).detach()
    assert not torch.equal(method.forward_and_adapt(image), source)
    assert torch.isfinite(softmax_entropy(source)).all()
