"""Fused optimizers."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional.optimizers import fused
from tta_bench.methods import Tent
from tta_bench.testing import toy_backbone

MAKERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}


def steps(make, count=20):
    rng = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(5, 3, generator=rng, dtype=torch.float64)) for _ in range(3)]
    optimizer = make(parameters)
    for _ in range(count):
        for parameter in parameters:
            parameter.grad = torch.randn(5, 3, generator=rng, dtype=torch.float64)
        parameters[1].grad = None  # not every loss reaches every parameter
        optimizer.step()
    return optimizer, torch.stack([parameter.detach() for parameter in parameters])


@pytest.mark.parametrize("name", MAKERS)
def test_a_fused_optimizer_has_the_numbers_of_a_plain_one(name):
    optimizer, found = steps(lambda parameters: fused(MAKERS[name](parameters)))
    assert [group["fused"] for group in optimizer.param_groups] == [True]
    torch.testing.assert_close(found, steps(MAKERS[name])[1], rtol=0, atol=1e-13)


def test_what_was_chosen_or_has_no_fused_kernel_stays():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    chosen = fused(torch.optim.Adam(parameters, foreach=True))
    assert chosen.param_groups[0]["fused"] is None
    assert fused(torch.optim.SGD(parameters, lr=0.1, fused=False)).param_groups[0]["fused"] is False
    elsewhere = [torch.nn.Parameter(torch.ones(2, device="meta"))]
    assert fused(torch.optim.SGD(elsewhere, lr=0.1)).param_groups[0]["fused"] is None
    assert fused(torch.optim.RMSprop(parameters)).param_groups[0]["foreach"] is None
    assert fused(None) is None


def test_a_method_steps_with_fused_kernels():
    method = Tent(toy_backbone())
    method.configure_model()
    assert method.optimizer.param_groups[0]["fused"] is True
