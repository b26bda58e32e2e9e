"""DeYO against the traces of the released code, in float64, with the recorded permutations."""

import math

import numpy as np
import pytest
import torch

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, load_trace
from tta_bench.functional import softmax_entropy
from tta_bench.methods import DeYO

MARGINS = {"deyo": (2.2085, 2.2), "deyo_sharp": (1.75, 1.3)}  # of the filter, of the weights; in nats
RUNS = {
    "deyo": {"lr": 0.03, "plpd_threshold": 0.0, "grid": 4},
    "deyo_sharp": {"lr": 0.0003, "plpd_threshold": 0.1, "grid": 8},
}


class RecordedDeYO(DeYO):
    """Takes the permutations from a trace and keeps the differences."""

    def follow_orders(self, orders):
        self.orders = iter(orders)
        self.differences = []

    def forward_and_adapt(self, images):
        self.order = next(self.orders)
        return super().forward_and_adapt(images)

    def draw_order(self, count):
        return torch.from_numpy(self.order[:count])

    def plpd(self, images, logits):
        self.differences.append(super().plpd(images, logits))
        return self.differences[-1]


@pytest.mark.parametrize("name", RUNS)
def test_deyo_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    margins = dict(zip(("entropy_margin", "weight_margin"), np.divide(MARGINS[name], math.log(10)), strict=True))
    method = RecordedDeYO(golden_backbone(trace), **margins, **RUNS[name]).double()
    method.configure_model()
    method.follow_orders(trace["perm"])
    rows = follow.follow(method)
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_passes(rows, trace)
    follow.assert_counts(rows, "sure", trace, "n_selected_entropy")
    follow.assert_counts(rows, "selected", trace, "n_selected_final")
    follow.assert_final_parameters(method, trace)
    for t, ours in enumerate(method.differences):
        sure = softmax_entropy(torch.from_numpy(trace["logits"][t])).numpy() < MARGINS[name][0]
        np.testing.assert_allclose(ours.numpy(), trace["plpd"][t][sure], rtol=1e-6, atol=1e-9)
        assert np.isnan(trace["plpd"][t][~sure]).all()
