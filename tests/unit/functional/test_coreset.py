"""The coreset's formulas, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import Statistics
from tta_bench.functional.coreset import Coreset


def stats(mean, std):
    return Statistics(torch.tensor(mean), torch.tensor(std))


def coreset(*elements, **settings):
    """Elements of a mean (2,), a standard deviation (2,) and a prompt of equal entries (1, 2)."""
    built = Coreset(2, torch.zeros(1, 2), **settings)
    for mean, std, prompt in elements:
        built.append(stats(mean, std), torch.full((1, 2), prompt))
    return built


def test_weights_fall_with_the_distance_of_means_and_deviations():
    built = coreset(([0.0, 0.0], [1.0, 1.0], 0.0), ([3.0, 4.0], [1.0, 3.0], 0.0))
    nearer = 1 / (1 + math.exp(-(5 + 2) / 4))
    torch.testing.assert_close(
        built.weights(stats([0.0, 0.0], [1.0, 1.0]), tau=4.0), torch.tensor([nearer, 1 - nearer])
    )


def test_a_mixture_is_the_weighted_sum_of_prompts():
    built = coreset(([0.0, 0.0], [1.0, 1.0], 2.0), ([1.0, 1.0], [1.0, 1.0], 10.0))
    assert built.mix(torch.tensor([0.25, 0.75])).tolist() == [[8.0, 8.0]]


def test_refining_moves_each_element_by_its_own_share():
    built = coreset(([0.0, 0.0], [1.0, 1.0], 0.0), ([8.0, 8.0], [3.0, 3.0], 4.0))
    built.refine(torch.tensor([0.75, 0.25]), stats([4.0, 8.0], [2.0, 2.0]), torch.full((1, 2), 8.0), alpha=0.5)
    assert built.mean.tolist() == [[1.5, 3.0], [7.5, 8.0]]
    assert built.std.tolist() == [[1.375, 1.375], [3.0, 3.0]]  # never shrinks
    assert built.prompt[:, 0].tolist() == [[3.0, 3.0], [4.5, 4.5]]


def test_refining_keeps_no_graph():
    built, prompt = coreset(([0.0, 0.0], [1.0, 1.0], 0.0)), torch.ones(1, 2, requires_grad=True)
    built.refine(torch.ones(1), Statistics(prompt[0] * 2, prompt[0] * 3), prompt, alpha=0.5)
    assert not any(value.requires_grad for value in built.buffers())


class TestMakingRoom:
    def test_deviations_count_where_means_are_equal(self):
        near = ([0.0, 0.0], [1.0, 1.0], 1.0), ([0.0, 0.0], [9.0, 1.0], 2.0), ([2.0, 0.0], [1.0, 1.0], 5.0)
        built = coreset(*near, max_size=2)  # the first and the third are 2 apart, the first two 8
        assert built.mean[:, 0].tolist() == [1.0, 0.0]
        assert built.std[:, 0].tolist() == [1.0, 9.0]
        assert built.prompt[:, 0, 0].tolist() == [3.0, 2.0]

    def test_means_count_where_deviations_are_equal(self):
        near = ([0.0, 0.0], [1.0, 1.0], 1.0), ([9.0, 0.0], [1.0, 1.0], 2.0), ([8.0, 0.0], [1.0, 1.0], 4.0)
        assert coreset(*near, max_size=2).prompt[:, 0, 0].tolist() == [1.0, 3.0]

    def test_the_oldest_goes_if_nothing_is_merged(self):
        old = ([0.0, 0.0], [1.0, 1.0], 1.0), ([9.0, 0.0], [2.0, 1.0], 2.0), ([9.0, 0.0], [3.0, 1.0], 4.0)
        built = coreset(*old, max_size=2, overflow="discard")
        assert built.std[:, 0].tolist() == [2.0, 3.0]
        assert built.prompt[:, 0, 0].tolist() == [2.0, 4.0]

    @pytest.mark.parametrize("overflow", ["merge", "discard"])
    def test_a_coreset_of_one_element(self, overflow):
        built = coreset(([0.0, 0.0], [1.0, 1.0], 1.0), ([8.0, 0.0], [3.0, 1.0], 5.0), max_size=1, overflow=overflow)
        assert built.prompt[:, 0, 0].tolist() == [3.0 if overflow == "merge" else 5.0]
        assert len(built) == len(built.std) == 1


@pytest.mark.parametrize(("prompt", "expected"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_statistics_are_never_in_half_precision(prompt, expected):
    built = Coreset(2, torch.zeros(1, 2, dtype=prompt))
    assert (built.mean.dtype, built.std.dtype, built.prompt.dtype) == (expected, expected, prompt)
