"""NOTE without its batch norm: when it learns, and from which images."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional import softmax_entropy
from tta_bench.methods import NOTEPBRS
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def method(backbone=toy_backbone, **settings):
    return ready(lambda: NOTEPBRS(backbone(), **{"update_every": 8, **settings}))


@torch.no_grad()
def mean_entropy(network, images):
    return float(softmax_entropy(network(images)).mean())


def test_the_loss_is_the_mean_entropy_of_the_memory():
    built, losses = method(memory_size=4), []
    update = built.update
    built.update = lambda loss: (losses.append(loss.item()), update(loss))
    built.forward_and_adapt(batches(1)[0])
    assert len(built.memory) == 4
    assert losses == [pytest.approx(mean_entropy(toy_backbone(), built.memory.images), rel=1e-5)]
    assert built.passes() == (1.5, 0.5)


def test_learning_lowers_the_entropy_of_the_memory():
    built, images = method(lr=1e-4), batches(1)[0]
    built.forward_and_adapt(images)
    assert mean_entropy(built.backbone, images) < mean_entropy(toy_backbone(), images)


def test_a_batch_is_predicted_before_it_is_learned_from():
    built, images = method(update_every=3), batches(1)[0]
    torch.testing.assert_close(built.forward_and_adapt(images), toy_backbone()(images).detach())
    assert int(built.waiting) == 2
    assert built.passes() == (1 + 9 / 8, 9 / 8)  # 3 images in memory, then 6


def test_pseudo_labels_come_from_the_adapted_model():
    built = method(memory_size=64)
    for images in batches(2):
        labels = built.forward_and_adapt(images).argmax(dim=1)
        assert built.memory.labels[-8:].tolist() == labels.tolist()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_networks_adapt_too(norm):
    built = method(lambda: toy_cnn(norm), update_every=5, memory_size=6)
    for images in batches(3):
        assert torch.isfinite(built.forward_and_adapt(images)).all()
