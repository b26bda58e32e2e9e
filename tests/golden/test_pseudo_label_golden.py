"""Pseudo-label against the trace of LAME's repository, in float64."""

import numpy as np
import pytest
import torch

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.methods import PseudoLabelLAME

SETTINGS = {"pl": {"lr": 0.05, "threshold": 0.18}, "pl_sharp": {"lr": 0.003, "threshold": 0.5}}


def method_of(name, trace):
    method = PseudoLabelLAME(golden_backbone(trace), **SETTINGS[name]).double()
    method.configure_model()
    return method


@pytest.mark.parametrize("name", SETTINGS)
def test_pseudo_label_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    rows = follow.follow(method)
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_passes(rows, trace)
    follow.assert_counts(rows, "confident", trace, "n_selected")
    follow.assert_final_parameters(method, trace)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_first_pass_is_that_of_the_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    for t, images in enumerate(golden_batches()):
        with torch.no_grad():
            before = method.backbone(images).numpy()
        tolerance = max(1e-9, 20 * trace["sensitivity"][t])
        np.testing.assert_allclose(before, trace["logits_before"][t], rtol=0, atol=tolerance)
        method.forward_and_adapt(images)
