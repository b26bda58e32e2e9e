"""LAME's affinities and its bound optimisation, by hand and in the properties that the paper proves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_bench.methods import LAME
from tta_bench.methods.lame import assign
from tta_bench.testing import batches, ready, toy_backbone

# Unit vectors at these angles; the chords between neighbours grow from left to right.
ANGLES = [0.0, 0.1, 0.3, 0.7]
FEATURES = torch.tensor([[math.cos(a), math.sin(a)] for a in ANGLES], dtype=torch.float64)


def chord(i, j):
    return 2 * math.sin(abs(ANGLES[i] - ANGLES[j]) / 2)


def affinity(kind, neighbors):
    return LAME(toy_backbone(), affinity=kind, neighbors=neighbors).affinity(FEATURES)


def test_knn_marks_the_nearest_neighbours_of_each_row_without_itself():
    assert affinity("knn", 1).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert affinity("knn", 2).sum(dim=1).tolist() == [2, 2, 2, 2]


def test_knn_takes_all_others_where_there_are_too_few():
    assert affinity("knn", 9).tolist() == (1 - torch.eye(4)).tolist()


def test_rbf_is_as_wide_as_the_mean_distance_to_a_neighbour_counted_from_the_image_itself():
    width = (chord(0, 1) + chord(1, 0) + chord(2, 1) + chord(3, 2)) / 4  # rank 2: the nearest other image
    kernel = affinity("rbf", 2)
    assert kernel[0, 3].item() == pytest.approx(math.exp(-(chord(0, 3) ** 2) / (2 * width**2)), rel=1e-9)
    assert kernel.diagonal().tolist() == [1, 1, 1, 1]


def test_linear_is_the_cosine():
    assert affinity("linear", 5)[1, 3].item() == pytest.approx(math.cos(0.6), rel=1e-12)


def test_a_batch_of_equal_images_has_a_kernel_of_ones():
    method = LAME(toy_backbone(), affinity="rbf")
    assert method.affinity(FEATURES[[1, 1, 1]]).tolist() == [[1, 1, 1]] * 3


def test_one_image_keeps_its_prediction():
    method = ready(lambda: LAME(toy_backbone()))
    images = batches(1, batch_size=1)[0]
    torch.testing.assert_close(method.forward_and_adapt(images), method.backbone(images).softmax(dim=1))


def test_unlike_images_keep_their_predictions():
    probabilities = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    assigned, energy, iterations = assign(probabilities, torch.zeros(2, 2, dtype=torch.float64))
    torch.testing.assert_close(assigned, probabilities, rtol=1e-8, atol=1e-8)
    assert energy == pytest.approx(0, abs=1e-8)  # relative entropy to the predictions
    assert iterations == 3  # the fewest


def test_one_iteration_by_hand():
    probabilities = torch.tensor([[0.5, 0.5], [0.8, 0.2]], dtype=torch.float64)
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assigned, energy, _ = assign(probabilities, swap, max_iterations=1)
    a = 0.5 * math.exp(0.8) / (0.5 * math.exp(0.8) + 0.5 * math.exp(0.2))
    torch.testing.assert_close(assigned[0], torch.tensor([a, 1 - a], dtype=torch.float64), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(assigned[1], probabilities[1], rtol=1e-8, atol=1e-8)  # its neighbour had no opinion
    first = a * (math.log(a / 0.5) - 0.8) + (1 - a) * (math.log((1 - a) / 0.5) - 0.2)
    assert energy == pytest.approx(first - 0.5, abs=1e-8)


def test_sure_neighbours_outvote_an_image():
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    alike = torch.ones(3, 3, dtype=torch.float64)
    assigned, _, _ = assign(probabilities, alike)
    assert assigned.argmax(dim=1).tolist() == [0, 0, 0]


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_the_objective_never_rises_for_a_positive_semidefinite_affinity(seed):
    rng = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(6, 3, generator=rng, dtype=torch.float64).softmax(dim=1)
    features = torch.randn(6, 2, generator=rng, dtype=torch.float64)
    kernel = features @ features.T

    def objective(y):
        return (y * (y.log() - probabilities.log())).sum() - (y * (kernel @ y)).sum() / 2

    values = [objective(assign(probabilities, kernel, max_iterations=n)[0].clamp(min=1e-30)) for n in range(1, 8)]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(values))
