"""Propositions 1-3 of the paper: on well separated clusters the simplified DPCore does not depend on the order."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.plane import WIDTH, Plane
from tta_bench.methods import DPCoreSimplified

THETA = 3.0


@st.composite
def clustered_batches(draw):
    """Batches of 1-4 clusters: centres at least 10 apart, members within 1 of theirs, theta = 3 between."""
    num_clusters = draw(st.integers(1, 4))
    members = [draw(st.integers(1, 4)) for _ in range(num_clusters)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batches = []
    for cluster, count in enumerate(members):
        centre = np.zeros(WIDTH)
        centre[0] = 10.0 * cluster
        for _ in range(count):
            offset = rng.normal(size=WIDTH)
            mean = centre + offset / np.linalg.norm(offset) * rng.uniform(0, 1)
            spread = rng.normal(size=(6, WIDTH))
            batches.append((cluster, mean + spread - spread.mean(axis=0)))
    return batches


def run(batches):
    """The method at the end, and the element of every batch."""
    method = DPCoreSimplified(Plane(), theta=THETA, prompt_length=2, steps_new=3, num_source=8)
    method.double().configure_model()
    method.fit_source([torch.randn(8, 1, 1, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))])
    elements = []
    for _, values in batches:
        method.forward_and_adapt(torch.from_numpy(values).reshape(-1, 1, 1, WIDTH))
        elements.append(method.element)
    return method, elements


def partition(batches, elements):
    """Which cluster each element stands for; fails if one element holds two clusters."""
    pairs = {(element, cluster) for (cluster, _), element in zip(batches, elements, strict=True)}
    assert len(pairs) == len({e for e, _ in pairs}) == len({c for _, c in pairs})
    return {cluster: element for element, cluster in pairs}


@settings(max_examples=40, deadline=None)
@given(clustered_batches(), st.randoms(use_true_random=False))
def test_every_batch_joins_its_cluster_in_any_order(batches, random):
    random.shuffle(batches)
    method, elements = run(batches)
    assert len(partition(batches, elements)) == len(method.coreset)


@settings(max_examples=40, deadline=None)
@given(clustered_batches(), st.randoms(use_true_random=False))
def test_core_mean_is_the_cluster_mean_in_any_order(batches, random):
    random.shuffle(batches)
    method, elements = run(batches)
    for cluster, element in partition(batches, elements).items():
        expected = np.mean([values.mean(axis=0) for c, values in batches if c == cluster], axis=0)
        np.testing.assert_allclose(method.coreset.mean[element].numpy(), expected, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(clustered_batches(), st.randoms(use_true_random=False))
def test_prompts_do_not_depend_on_how_the_clusters_are_interleaved(batches, random):
    """Prop. 3, read as it can hold: within a cluster one-step refinements do not commute, between clusters they do."""
    clusters = [cluster for cluster, _ in batches]
    random.shuffle(clusters)
    queues = {c: [b for b in batches if b[0] == c] for c in set(clusters)}
    interleaved = [queues[c].pop(0) for c in clusters]

    one, elements = run(batches)
    other, other_elements = run(interleaved)

    ours, theirs = partition(batches, elements), partition(interleaved, other_elements)
    for cluster in ours:
        a, b = one.coreset.prompt[ours[cluster]], other.coreset.prompt[theirs[cluster]]
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
