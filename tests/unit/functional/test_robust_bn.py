"""Robust batch norm between its two closed forms: source statistics (alpha 0) and batch statistics (alpha 1)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm

from tta_bench.functional.robust_bn import RobustBN, following, use_robust_batch_norm
from tta_bench.testing import batches, toy_backbone, toy_cnn


def source_layer(dims=2):
    layer = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}[dims](3).double().eval()
    rng = torch.Generator().manual_seed(0)
    for tensor in (layer.weight.data, layer.bias.data, layer.running_mean, layer.running_var):
        tensor.uniform_(0.5, 2, generator=rng)
    return layer


def features(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def both(layer, x, grad, **settings):
    """Output and gradients for x and the weight of torch's batch norm."""
    x, weight = x.clone().requires_grad_(), layer.weight.detach().clone().requires_grad_()
    out = batch_norm(x, layer.running_mean.clone(), layer.running_var.clone(), weight, layer.bias, **settings)
    return out, *torch.autograd.grad(out, (x, weight), grad)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 5)])
@pytest.mark.parametrize(("alpha", "training"), [(0.0, False), (1.0, True)])
def test_the_ends_are_torchs_batch_norm_with_gradients(shape, alpha, training):
    layer, x, grad = source_layer(), features(*shape), features(*shape) ** 2
    robust, ours = RobustBN(layer, alpha), x.clone().requires_grad_()
    with following(robust):
        out = robust(ours)
    found = (out, *torch.autograd.grad(out, (ours, robust.weight), grad))
    for value, expected in zip(found, both(layer, x, grad, training=training), strict=True):
        torch.testing.assert_close(value, expected)


def test_statistics_move_by_alpha_before_they_are_used_and_stay_afterwards():
    layer = source_layer(1)
    layer.running_mean[:], layer.running_var[:], layer.weight.data[:], layer.bias.data[:] = 0, 1, 1, 0
    robust = RobustBN(layer, alpha=0.25)
    x = torch.tensor([[2.0, 0.0, 8.0], [6.0, 0.0, 8.0]], dtype=torch.float64)  # mean 4, 0, 8; biased variance 4, 0, 0
    with following(robust):
        out = robust(x)
    torch.testing.assert_close(robust.mean, torch.tensor([1.0, 0.0, 2.0]).double())
    torch.testing.assert_close(robust.var, torch.tensor([1.75, 0.75, 0.75]).double())
    torch.testing.assert_close(out[:, 0], (x[:, 0] - 1) / (1.75 + layer.eps) ** 0.5)
    torch.testing.assert_close(robust(x), out)
    torch.testing.assert_close(robust.mean[0], torch.tensor(1.0).double())  # outside the block they rest


def test_a_network_predicts_as_before_until_it_follows():
    network, images = toy_cnn("batch"), batches(1)[0]
    with torch.no_grad():
        before = network(images)
        names = [name for name, _ in network.named_parameters()]
        use_robust_batch_norm(network, alpha=0.05)
        torch.testing.assert_close(network(images), before)
        with following(network):
            network(images)
        assert not torch.allclose(network(images), before)
    assert [name for name, _ in network.named_parameters()] == names
    assert sum(isinstance(layer, RobustBN) for layer in network.modules()) == 12
    assert not any(layer.follows for layer in network.modules() if isinstance(layer, RobustBN))


def test_other_norms_are_left_alone():
    network = toy_backbone()
    use_robust_batch_norm(network, alpha=0.05)
    assert not any(isinstance(layer, RobustBN) for layer in network.modules())


def test_layers_that_do_more_are_refused():
    with pytest.raises(ValueError, match="cannot replace BatchNorm3d"):
        use_robust_batch_norm(nn.Sequential(nn.BatchNorm3d(2)), alpha=0.05)
    with pytest.raises(ValueError, match="this layer has none"):
        RobustBN(nn.BatchNorm2d(3, track_running_stats=False), alpha=0.05)
