"""SAR against the traces of the released code and of mariodoebler/test-time-adaptation, in float64."""

import math

import numpy as np
import pytest

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, load_trace
from tta_bench.methods import SAR

RELEASED = {"none_reliable": "coast", "average_after_recovery": "kept"}
RUNS = {
    "sar": {**RELEASED, "lr": 0.03, "entropy_margin": 2.2045 / math.log(10)},
    "sar_sharp": {**RELEASED, "lr": 0.001, "entropy_margin": 1.3 / math.log(10)},
    "sar_reset_sharp": {**RELEASED, "lr": 0.01, "entropy_margin": 0.8 / math.log(10)},
    "sar_reset_bench_sharp": {"none_reliable": "coast", "lr": 0.01, "entropy_margin": 0.8 / math.log(10)},
}


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    """The trace, our rows, the two losses of each batch, and the method at the end."""
    trace = load_trace(f"{request.param}_trace")
    method = SAR(golden_backbone(trace), **RUNS[request.param]).double()
    method.configure_model()
    losses, backward = [], method.backward

    def recorded(loss):
        losses.append(loss.item())
        backward(loss)

    method.backward = recorded
    return trace, follow.follow(method), np.reshape(losses, (14, 2)), method


def test_scores_and_passes_follow_the_trace(run):
    trace, rows, _, _ = run
    follow.assert_scores(rows, trace)
    follow.assert_passes(rows, trace)


def test_losses_follow_the_trace(run):
    trace, _, losses, _ = run
    expected = np.nan_to_num(trace["loss"])  # nan: the mean of nothing
    np.testing.assert_allclose(losses, expected, rtol=1e-8, atol=1e-9)


def test_selections_and_recoveries_are_those_of_the_trace(run):
    trace, rows, _, _ = run
    follow.assert_counts(rows, "reliable", trace, "n_selected_first")
    follow.assert_counts(rows, "reliable_twice", trace, "n_selected_second")
    follow.assert_counts(rows, "recovered", trace, "reset")


def test_average_follows_the_trace(run):
    trace, rows, _, _ = run
    ours = [row.diagnostics["entropy_average"] for row in rows]
    np.testing.assert_allclose(ours, trace["ema"], rtol=1e-8)


def test_final_parameters_are_those_of_the_trace(run):
    trace, _, _, method = run
    follow.assert_final_parameters(method, trace)
