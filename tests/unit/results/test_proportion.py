"""Wilson's interval against scipy."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from tta_bench.results.proportion import wilson


@pytest.mark.parametrize(("count", "total"), [(0, 20), (1, 20), (7, 20), (20, 20), (0, 1), (500, 1000)])
def test_the_interval_is_that_of_scipy(count, total):
    interval = binomtest(count, total).proportion_ci(0.95, method="wilson")
    assert wilson(count, total) == pytest.approx((100 * interval.low, 100 * interval.high), abs=1e-9)


def test_no_samples_have_no_interval():
    with pytest.raises(ValueError, match="at least one sample"):
        wilson(0, 0)
