"""Pseudo-label and RPL: branches that the traces do not reach, and the direction of their steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tta_bench.functional import generalized_cross_entropy
from tta_bench.methods import RPL, PseudoLabel, PseudoLabelLAME
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def self_training_loss(logits):
    return cross_entropy(logits, logits.argmax(dim=1))


@pytest.mark.parametrize(
    ("cls", "loss"),
    [(PseudoLabel, self_training_loss), (RPL, lambda logits: generalized_cross_entropy(logits).mean())],
)
def test_a_small_step_lowers_the_loss(cls, loss):
    method = ready(lambda: cls(toy_backbone(), lr=1e-3))
    images = batches(2)[1]
    before = loss(method.forward_and_adapt(images)).item()
    assert loss(method.backbone(images)).item() < before


def test_only_confident_images_teach():
    images = batches(6)[2].double()
    whole = ready(lambda: PseudoLabel(toy_backbone(), threshold=0.95).double())
    confident = whole.backbone(images).softmax(dim=1).amax(dim=1) > 0.95
    assert 0 < confident.sum() < len(images)
    whole.forward_and_adapt(images)

    part = ready(lambda: PseudoLabel(toy_backbone()).double())
    part.forward_and_adapt(images[confident])

    assert whole.passes() == (1, confident.sum() / len(images))
    for ours, theirs in zip(whole.adapted, part.adapted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_without_a_confident_image_not_even_the_momentum_moves():
    method = ready(lambda: PseudoLabel(toy_backbone()))
    method.forward_and_adapt(batches(1)[0])
    before = [p.detach().clone() for p in method.adapted]
    method.hparams.threshold = 1.0
    method.forward_and_adapt(batches(1)[0])
    assert method.passes() == (1, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, method.adapted, strict=True))


def test_adam_is_a_choice():
    for cls in (PseudoLabel, RPL):
        assert isinstance(ready(lambda cls=cls: cls(toy_backbone(), optimizer="adam")).optimizer, torch.optim.Adam)


def test_the_variant_of_lame_adapts_early_layers_by_plain_sgd_and_predicts_again():
    method = ready(lambda: PseudoLabelLAME(toy_backbone(), lr=0.1))
    assert method.trainable_parameters() == 4 * 2 * 32  # two norms in each of two blocks, not the final one
    assert method.optimizer.defaults["momentum"] == 0
    images = batches(1)[0]
    assert torch.equal(method.forward_and_adapt(images), method.backbone(images))
    assert not method.forward_and_adapt(images).requires_grad


@pytest.mark.parametrize(
    ("cls", "settings"), [(PseudoLabel, {}), (PseudoLabelLAME, {"threshold": 0.3, "lr": 0.1}), (RPL, {})]
)
def test_networks_with_batch_norm_are_adapted(cls, settings):
    method = ready(lambda: cls(toy_cnn("batch"), **settings))
    before = [p.detach().clone() for p in method.adapted]
    method.forward_and_adapt(batches(1)[0])
    assert any(not torch.equal(a, b) for a, b in zip(before, method.adapted, strict=True))
