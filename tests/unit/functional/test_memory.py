"""Memories of test images: the published rules, in a second implementation and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_bench.functional.memory import CSTU, PBRS, cut_at_updates

# Few values, so that scores are often equal.
ARRIVALS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=40)


def numbered(count, start=0):
    """Images (count, 1, 1, 1) that hold their position in the stream."""
    return torch.arange(start, start + count, dtype=torch.float64).view(-1, 1, 1, 1)


def ids(memory):
    return [int(i) for i in memory.images.flatten()]


def add(memory, arrivals, start=0):
    labels, entropies = zip(*arrivals, strict=True)
    memory.add(numbered(len(labels), start), torch.tensor(labels), torch.tensor(entropies, dtype=torch.float64))


def reference(arrivals, capacity, num_classes):
    """What CSTU keeps, class by class: positions in the stream."""
    bank = [[] for _ in range(num_classes)]  # of (position, entropy)

    def score(now, position, entropy):
        return 1 / (1 + math.exp(-(now - position) / capacity)) + entropy / math.log(num_classes)

    for now, (label, entropy) in enumerate(arrivals):
        largest = max(len(kept) for kept in bank)
        if len(bank[label]) < capacity / num_classes:
            full = sum(len(kept) for kept in bank) == capacity
            rivals = [k for k, kept in enumerate(bank) if len(kept) == largest] if full else []
        else:
            rivals = [label]
        enters, worst = True, -math.inf
        for k in rivals:
            for place, item in enumerate(bank[k]):
                if score(now, *item) >= worst:
                    worst, leaving = score(now, *item), (k, place)
        if rivals:
            enters = worst > score(now, now, entropy)
            if enters:
                bank[leaving[0]].pop(leaving[1])
        if enters:
            bank[label].append((now, entropy))
    return [[position for position, _ in kept] for kept in bank]


@given(ARRIVALS, st.integers(1, 9), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_cstu_keeps_what_the_reference_keeps_however_the_stream_is_cut(arrivals, capacity, batch_size):
    memory = CSTU(capacity, 4)
    for start in range(0, len(arrivals), batch_size):
        add(memory, arrivals[start : start + batch_size], start)
    expected = reference(arrivals, capacity, 4)
    assert ids(memory) == [position for kept in expected for position in kept]
    assert memory.labels.tolist() == [label for label, kept in enumerate(expected) for _ in kept]


@given(ARRIVALS, st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_cstu_never_exceeds_capacity_nor_quota_and_counts_ages(arrivals, capacity):
    memory = CSTU(capacity, 4)
    for i, arrival in enumerate(arrivals):
        add(memory, [arrival], i)
        assert len(memory) <= capacity
        assert memory.labels.bincount().max() <= math.ceil(capacity / 4)
        assert memory.ages.tolist() == [i + 1 - position for position in ids(memory)]
        assert memory.entropies.tolist() == [arrivals[position][1] for position in ids(memory)]


def test_an_uncertain_image_leaves_for_a_sure_one_of_its_full_class():
    memory = CSTU(4, 2)  # two of each class
    add(memory, [(0, 0.6), (0, 0.1), (0, 0.2)])
    assert ids(memory) == [1, 2]


def test_an_image_worse_than_all_of_its_full_class_is_dropped():
    memory = CSTU(4, 2)
    add(memory, [(0, 0.1), (0, 0.1), (0, 0.6)])
    assert ids(memory) == [0, 1]


def test_an_old_image_leaves_for_a_new_one_of_equal_entropy():
    memory = CSTU(4, 2)
    add(memory, [(0, 0.1)] * 3)
    assert ids(memory) == [1, 2]


def test_a_small_class_takes_a_place_from_the_largest():
    memory = CSTU(5, 2)  # up to three of a class
    add(memory, [(0, 0.1), (0, 0.1), (0, 0.5), (1, 0.6), (1, 0.6), (1, 0.1)])
    assert ids(memory) == [0, 1, 3, 4, 5]


def test_weights_decide_between_age_and_entropy():
    by_age, by_entropy = CSTU(2, 2, entropy_weight=0.0), CSTU(2, 2, age_weight=0.0)
    for memory in (by_age, by_entropy):
        add(memory, [(0, 0.1), (0, 0.2)])
    assert (ids(by_age), ids(by_entropy)) == ([1], [0])


@given(st.integers(0, 7), st.integers(1, 30), st.integers(8, 12))
def test_a_batch_is_cut_exactly_where_updates_are_due(waiting, batch_size, every):
    parts = list(cut_at_updates(waiting, batch_size, every))
    rows = [row for part, _ in parts for row in range(batch_size)[part]]
    assert rows == list(range(batch_size))
    due = [part.stop for part, is_due in parts if is_due]
    assert due == [n for n in range(1, batch_size + 1) if (waiting + n) % every == 0]


def pbrs(labels, capacity=4, num_classes=3, seed=0):
    memory = PBRS(capacity, num_classes)
    memory.add(numbered(len(labels)), torch.tensor(labels), torch.Generator().manual_seed(seed))
    return memory


def test_pbrs_fills_up_with_whatever_comes():
    memory = pbrs([0, 0, 0, 1])
    assert ids(memory) == [0, 1, 2, 3]
    assert memory.seen.tolist() == [3, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_pbrs_gives_a_smaller_class_a_place_of_the_largest(seed):
    memory = pbrs([0, 0, 0, 1, 2], seed=seed)
    assert sorted(memory.labels.tolist()) == [0, 0, 1, 2]
    assert ids(memory)[-1] == 4


def test_pbrs_samples_the_past_of_a_class_uniformly():
    runs, arrivals, capacity = 600, 16, 4
    kept = torch.zeros(arrivals)
    rng = torch.Generator().manual_seed(0)
    for _ in range(runs):
        memory = PBRS(capacity, 2)
        memory.add(numbered(arrivals), torch.zeros(arrivals, dtype=torch.long), rng)
        kept[ids(memory)] += 1
    share = capacity / arrivals
    assert (kept / runs - share).abs().max() < 4 * math.sqrt(share * (1 - share) / runs)


def share_of_runs(labels, capacity, num_classes, outcome, runs=2000):
    """How often an outcome of the memory is met, and four standard deviations of that."""
    rng, met = torch.Generator().manual_seed(0), 0
    for _ in range(runs):
        memory = PBRS(capacity, num_classes)
        memory.add(numbered(len(labels)), torch.tensor(labels), rng)
        met += outcome(ids(memory))
    return met / runs, 4 * math.sqrt(0.25 / runs)


def test_pbrs_lets_an_image_of_a_largest_class_in_with_probability_m_over_n():
    # Two of the three images of class 0 are stored when the third arrives.
    share, tolerance = share_of_runs([0, 0, 1, 1, 0], 4, 2, lambda kept: 4 in kept)
    assert share == pytest.approx(2 / 3, abs=tolerance)
    # Two of four of class 1, where N / n would let it in always.
    share, tolerance = share_of_runs([0, 1, 0, 1, 1, 1], 4, 2, lambda kept: 5 in kept)
    assert share == pytest.approx(2 / 4, abs=tolerance)


def test_pbrs_takes_the_place_from_any_of_the_largest_classes_alike():
    share, tolerance = share_of_runs([0, 0, 1, 1, 2], 4, 3, lambda kept: len({0, 1} & set(kept)) == 1)
    assert share == pytest.approx(1 / 2, abs=tolerance)
    for image in range(4):
        share, tolerance = share_of_runs([0, 0, 1, 1, 2], 4, 3, lambda kept, image=image: image not in kept)
        assert share == pytest.approx(1 / 4, abs=tolerance)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_pbrs_balances_whatever_the_cut(labels, capacity, batch_size):
    whole, rng = pbrs(labels, capacity), torch.Generator().manual_seed(0)
    memory = PBRS(capacity, 3)
    for start in range(0, len(labels), batch_size):
        part = labels[start : start + batch_size]
        memory.add(numbered(len(part), start), torch.tensor(part), rng)
    assert ids(memory) == ids(whole)
    assert len(memory) == min(capacity, len(labels))
    assert memory.labels.tolist() == [labels[position] for position in ids(memory)]
    assert memory.seen.tolist() == [labels.count(k) for k in range(3)]


def test_a_memory_is_saved_with_its_images():
    memory = CSTU(4, 2)
    add(memory, [(0, 0.6), (1, 0.1)])
    assert set(memory.state_dict()) == {"images", "labels", "entropies", "ages"}
    assert torch.equal(memory.state_dict()["images"], numbered(2))
