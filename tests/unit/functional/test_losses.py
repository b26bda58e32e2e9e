"""Losses and entropies, in numbers that can be checked by hand, and properties that hold for all predictions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_bench.functional import (
    generalized_cross_entropy,
    soft_cross_entropy,
    soft_likelihood_ratio,
    softmax_entropy,
    symmetric_cross_entropy,
)

LOGIT = st.floats(-20, 20, width=32)
ROW = st.lists(LOGIT, min_size=5, max_size=5)
THREE_TO_ONE = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)  # probabilities 3/4 and 1/4
EVEN = torch.zeros(1, 2).double()


def rows(*values):
    return [torch.tensor([row], dtype=torch.float64) for row in values]


def gradient(loss, logits):
    logits = logits.clone().requires_grad_()
    loss(logits).sum().backward()
    return logits.grad


def test_entropy_of_three_to_one():
    expected = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    assert softmax_entropy(THREE_TO_ONE).item() == pytest.approx(expected, rel=1e-12)


def test_soft_cross_entropy_by_hand():
    toward_even = -0.5 * math.log(3 / 4) - 0.5 * math.log(1 / 4)
    assert soft_cross_entropy(THREE_TO_ONE, EVEN).item() == pytest.approx(toward_even, rel=1e-12)
    assert soft_cross_entropy(EVEN, THREE_TO_ONE).item() == pytest.approx(math.log(2), rel=1e-12)


def test_soft_cross_entropy_pulls_by_the_difference_of_the_probabilities():
    pull = gradient(lambda z: soft_cross_entropy(z, EVEN), THREE_TO_ONE)
    torch.testing.assert_close(pull, torch.tensor([[0.25, -0.25]]).double())


def test_soft_cross_entropy_lets_gradients_through_the_target():
    pull = gradient(lambda z: soft_cross_entropy(THREE_TO_ONE, z), EVEN)
    log_p = THREE_TO_ONE.log_softmax(1)
    expected = -0.5 * (log_p - log_p.mean())  # p * (score - mean score), as for any softmax average
    torch.testing.assert_close(pull, expected)


@given(ROW, ROW)
def test_cross_entropy_is_at_least_the_entropy_of_the_target(a, b):
    logits, target = rows(a, b)
    assert soft_cross_entropy(logits, target).item() >= softmax_entropy(target).item() - 1e-9
    assert soft_cross_entropy(target, target).item() == pytest.approx(softmax_entropy(target).item(), abs=1e-9)


@given(ROW, ROW)
def test_symmetric_cross_entropy_has_no_direction(a, b):
    one, other = rows(a, b)
    there, back = soft_cross_entropy(one, other).item(), soft_cross_entropy(other, one).item()
    assert symmetric_cross_entropy(one, other).item() == pytest.approx((there + back) / 2, abs=1e-9)
    assert symmetric_cross_entropy(one, other).item() == symmetric_cross_entropy(other, one).item()


def test_soft_likelihood_ratio_of_three_to_one():
    expected = -(0.75 * math.log(3 + 1e-5) + 0.25 * math.log(1 / 3 + 1e-5))
    assert soft_likelihood_ratio(THREE_TO_ONE).item() == pytest.approx(expected, rel=1e-12)


def test_soft_likelihood_ratio_of_a_certain_prediction_is_finite():
    certain = torch.tensor([[500.0, 0.0]]).double()
    assert soft_likelihood_ratio(certain).item() == pytest.approx(-0.99 * math.log(99 + 1e-5), rel=1e-12)


def test_soft_likelihood_ratio_pulls_harder_than_entropy_when_sure():
    sure = torch.tensor([[math.log(49), 0.0]], dtype=torch.float64)  # probability 0.98
    assert gradient(soft_likelihood_ratio, sure)[0, 0] < 2 * gradient(softmax_entropy, sure)[0, 0] < 0


def test_generalized_cross_entropy_by_hand():
    assert generalized_cross_entropy(THREE_TO_ONE).item() == pytest.approx((1 - 0.75**0.8) / 0.8, rel=1e-12)
    assert generalized_cross_entropy(THREE_TO_ONE, q=1.0).item() == pytest.approx(0.25, rel=1e-12)


def test_generalized_cross_entropy_becomes_cross_entropy():
    assert generalized_cross_entropy(THREE_TO_ONE, q=1e-6).item() == pytest.approx(math.log(4 / 3), rel=1e-5)


@given(st.lists(st.integers(-20, 20), min_size=5, max_size=5, unique=True), st.sampled_from([0.3, 0.8, 1.0]))
def test_generalized_cross_entropy_damps_the_gradient_of_cross_entropy_by_p_to_the_q(row, q):
    (logits,) = rows(row)  # without ties, so that there is one predicted class
    p, label = logits.softmax(1).max(dim=1)
    of_cross_entropy = gradient(lambda z: torch.nn.functional.cross_entropy(z, label), logits)
    damped = gradient(lambda z: generalized_cross_entropy(z, q), logits)
    torch.testing.assert_close(damped, p**q * of_cross_entropy, rtol=1e-6, atol=1e-9)


@given(ROW, LOGIT)
def test_a_shift_of_all_logits_changes_no_loss(row, shift):
    (logits,) = rows(row)
    for loss in (softmax_entropy, soft_likelihood_ratio, generalized_cross_entropy):
        torch.testing.assert_close(loss(logits + shift), loss(logits), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "loss",
    [
        softmax_entropy,
        soft_likelihood_ratio,
        generalized_cross_entropy,
        lambda z: soft_cross_entropy(z, z),
        lambda z: symmetric_cross_entropy(z, z),
    ],
)
def test_losses_of_half_precision_are_float32_and_one_per_sample(loss):
    values = loss(torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).bfloat16())
    assert (values.dtype, values.shape) == (torch.float32, (3,))
