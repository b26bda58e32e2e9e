"""Visits to domains, change on return, and recovery after a change, by hand."""

from __future__ import annotations

import pytest

from tta_bench.results.rows import BatchRow
from tta_bench.results.visits import MOST_VISITS, recovery, revisit_change, settling_time, visit_summary, visits_of


def rows(*batches):
    return [BatchRow(t, batch, 0, 0, 0.0) for t, batch in enumerate(batches)]


def test_a_domain_that_comes_back_has_several_visits():
    found = visits_of(rows({"a": (4, 4)}, {"a": (4, 2)}, {"b": (4, 0)}, {"a": (2, 1)}))
    assert [(v.domain, v.number, v.start, v.stop, v.error) for v in found] == [
        ("a", 1, 0, 2, 75.0), ("b", 1, 2, 3, 0.0), ("a", 2, 3, 4, 50.0),
    ]  # fmt: skip


def test_a_batch_of_several_domains_belongs_to_a_visit_of_each():
    found = visits_of(rows({"a": (4, 1)}, {"a": (2, 2), "b": (2, 0)}, {"b": (4, 4)}))
    assert [(v.domain, v.start, v.stop, v.samples, v.wrong, v.alone) for v in found] == [
        ("a", 0, 2, 6, 3, False), ("b", 1, 3, 6, 4, False),
    ]  # fmt: skip


def test_visits_come_by_their_first_batch_then_by_name():
    found = visits_of(rows({"c": (4, 0)}, {"c": (2, 0), "a": (2, 0)}, {"c": (4, 0)}, {"d": (2, 0), "b": (2, 0)}))
    assert [(v.domain, v.start, v.stop) for v in found] == [("c", 0, 3), ("a", 1, 2), ("b", 3, 4), ("d", 3, 4)]


def test_the_change_on_return_is_last_minus_first_over_the_domains_that_return():
    # a: 50 -> 25 -> 0, so -50; b: 0 -> 100, so +100; c comes once and does not count.
    stream = [("a", 2), ("b", 0), ("a", 1), ("c", 4), ("b", 4), ("a", 0)]
    assert revisit_change(visits_of(rows(*({d: (4, w)} for d, w in stream)))) == 25.0
    assert revisit_change(visits_of(rows({"a": (4, 1)}, {"b": (4, 1)}))) is None


@pytest.mark.parametrize(
    ("errors", "batches"),
    [([50.0], 1), ([52.0, 48.0, 50.0], 1), ([52.1, 50.0, 50.0], 2), ([50.0, 50.0, 60.0, 50.0], 4), ([0, 9, 9, 9], 2)],
)
def test_settled_is_within_two_points_of_the_end_from_then_on(errors, batches):
    assert settling_time(errors) == batches


def test_recovery_is_the_mean_over_the_segments_that_follow_a_change():
    def segment(domain, *wrong):
        return [{domain: (10, w)} for w in wrong]

    stream = [
        *segment("a", 10, 0, 0, 0, 0),  # first: follows no change
        *segment("b", 4, 4, 4, 4, 4),  # settled at once: 1
        *segment("a", 9, 1, 5, 5, 5),  # running error 90, 50, 50, 50, 50: 2
        *segment("c", 9, 1, 9),  # too short
    ]
    batches = rows(*stream)
    assert recovery(visits_of(batches), batches) == 1.5


def test_segments_of_mixed_batches_have_no_recovery():
    batches = rows(*[{"a": (4, 1)}] * 6, *[{"a": (2, 1), "b": (2, 1)}] * 6)
    assert recovery(visits_of(batches), batches) is None


def test_a_result_holds_the_errors_of_the_first_visits_of_domains_that_come_back():
    returns = [{"a": (2, k % 3)} if turn == 0 else {"b": (4, 1)} for k in range(MOST_VISITS + 3) for turn in (0, 1)]
    found = visit_summary(rows({"once": (4, 4)}, *returns[:-1]))
    assert found["visit_error"] == {"a": [0.0, 50.0, 100.0, 0.0, 50.0, 100.0, 0.0, 50.0, 100.0, 0.0], "b": [25.0] * 10}
    assert found["revisit_change"] == pytest.approx(0.0)  # a: its 13th visit is as its first; b never changes
    assert found["recovery_batches"] is None  # no segment is long enough


def test_the_measures_of_a_result_are_those_of_the_report():
    some = rows(
        *[{"a": (4, k)} for k in (4, 3, 2, 1, 0)], *[{"b": (4, 1)}] * 6, *[{"a": (4, k)} for k in (4, 0, 0, 0, 0)]
    )
    found = visit_summary(some)
    visits = visits_of(some)
    assert found["visit_error"] == {"a": [50.0, 20.0]}
    assert found["revisit_change"] == revisit_change(visits) == -30.0
    assert found["recovery_batches"] == recovery(visits, some)


def test_a_run_without_batches_has_no_visits():
    assert visit_summary([]) == {"visit_error": {}, "revisit_change": None, "recovery_batches": None}
