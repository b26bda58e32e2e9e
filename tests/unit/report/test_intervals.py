"""Standard deviation, Student's t and paired differences, compared with tables and by hand."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t

from tta_bench.report.intervals import Difference, paired_difference, spread, student_t


@pytest.mark.parametrize(
    ("df", "level", "tabled"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (4, 0.95, 2.776), (9, 0.95, 2.262), (5, 0.99, 4.032), (30, 0.9, 1.697)],
)
def test_student_t_is_that_of_the_tables(df, level, tabled):
    assert student_t(df, level) == pytest.approx(tabled, abs=5e-4)


@pytest.mark.parametrize("df", [1, 2, 3, 6, 7, 50, 199])
def test_student_t_is_scipys(df):
    assert student_t(df) == pytest.approx(t.ppf(0.975, df), rel=1e-9)


def test_spread_divides_by_n_minus_1():
    assert spread([1.0, 4.0]).std == pytest.approx(math.sqrt(4.5))
    assert (spread([1.0]).std, spread([])) == (None, None)


def test_pairs_share_their_key_and_others_do_not_count():
    # Differences 2, 4, 6: mean 4, std 2, half width 4.302653 * 2 / sqrt(3).
    found = paired_difference({0: 52.0, 1: 54.0, 2: 56.0, 3: 1000.0}, {0: 50.0, 1: 50.0, 2: 50.0, 7: 0.0})
    assert (found.mean, found.n) == (4.0, 3)
    assert found.interval == pytest.approx((4 - 4.968276, 4 + 4.968276), abs=1e-5)


def test_what_makes_a_stream_hard_for_both_cancels():
    found = paired_difference({0: 90.0, 1: 10.0}, {0: 88.0, 1: 8.0})
    assert found == Difference(2.0, 0.0, 2)


def test_one_pair_has_no_interval_and_none_has_no_difference():
    one = paired_difference({0: 3.0}, {0: 1.0})
    assert (one.mean, one.interval) == (2.0, None)
    assert paired_difference({0: 3.0}, {1: 1.0}) is None
