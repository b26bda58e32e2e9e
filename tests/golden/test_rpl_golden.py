"""RPL against the trace of mariodoebler/test-time-adaptation, in float64."""

import pytest

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, load_trace
from tta_bench.methods import RPL

LR = {"rpl": 0.1, "rpl_sharp": 0.0005}


@pytest.mark.parametrize("name", LR)
def test_rpl_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = RPL(golden_backbone(trace), lr=LR[name]).double()
    method.configure_model()
    rows = follow.follow(method)
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_passes(rows, trace)
    follow.assert_final_parameters(method, trace)
