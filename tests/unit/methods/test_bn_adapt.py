"""BN-adapt on one layer by hand, and on a residual network against batch norm in training mode."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from tta_bench.functional.parameters import batch_norms
from tta_bench.methods import BNAdapt, Source
from tta_bench.models.backbones.base import Backbone
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


class OneNorm(Backbone):
    """A batch norm layer with source mean 4 and variance 9, and nothing else."""

    feature_dim = num_classes = 2

    def __init__(self):
        super().__init__((0.0,), (1.0,))
        self.norm = nn.BatchNorm2d(1, eps=0.0)
        nn.init.constant_(self.norm.running_mean, 4.0)
        nn.init.constant_(self.norm.running_var, 9.0)

    def _embed(self, images):
        return images

    def _encode(self, tokens, prompt):
        return self.norm(tokens).flatten(1)

    def classify(self, features):
        return features


@pytest.mark.parametrize(("prior", "mean", "var"), [(0.0, 3.0, 5.0), (0.25, 3.25, 6.0), (1.0, 4.0, 9.0)])
def test_statistics_are_mixed_by_the_prior(prior, mean, var):
    images = torch.tensor([[0.0, 2.0], [4.0, 6.0]])  # mean 3, biased variance 5
    scores = ready(lambda: BNAdapt(OneNorm(), prior=prior)).forward_and_adapt(images.view(2, 1, 1, 2))
    torch.testing.assert_close(scores, (images - mean) / math.sqrt(var))


def test_one_value_per_channel_is_normalised_by_the_source():
    scores = ready(lambda: BNAdapt(OneNorm())).forward_and_adapt(torch.full((1, 1, 1, 1), 10.0))
    assert scores.tolist() == [[2.0]]


def test_without_prior_a_network_predicts_as_in_training_mode():
    backbone = toy_cnn("batch")
    reference = copy.deepcopy(backbone.network).train()  # nothing in it but batch norm knows the mode
    images = batches(1)[0]
    expected = reference(backbone.normalize(images))
    torch.testing.assert_close(ready(lambda: BNAdapt(backbone)).forward_and_adapt(images), expected.detach())


def test_with_the_prior_alone_a_network_predicts_as_the_source():
    images = batches(1)[0]
    expected = ready(lambda: Source(toy_cnn("batch"))).forward_and_adapt(images)
    torch.testing.assert_close(ready(lambda: BNAdapt(toy_cnn("batch"), prior=1.0)).forward_and_adapt(images), expected)


def test_batches_leave_nothing_behind():
    method, (first, second) = ready(lambda: BNAdapt(toy_cnn("batch"), prior=0.5)), batches(2)
    expected = method.forward_and_adapt(second)
    method.forward_and_adapt(first)
    assert torch.equal(method.forward_and_adapt(second), expected)
    assert all(layer.running_mean is None for layer in batch_norms(method))  # by this, several devices are refused
    assert method.trainable_parameters() == 0


@pytest.mark.parametrize("backbone", [toy_backbone, lambda: toy_cnn("group")])
def test_a_network_without_batch_norm_is_refused(backbone):
    with pytest.raises(ValueError, match=r"^BNAdapt needs a backbone with batch norm layers, such as a residual"):
        ready(lambda: BNAdapt(backbone()))
