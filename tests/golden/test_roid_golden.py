"""ROID and CMF against the traces of mariodoebler/test-time-adaptation, in float64."""

import numpy as np
import pytest

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.methods import CMF, ROID

RUNS = {
    "roid": (ROID, {"lr": 0.005}),
    "roid_sharp": (ROID, {"lr": 2e-5}),
    "cmf": (CMF, {"lr": 0.005}),
    "cmf_sharp": (CMF, {"lr": 2e-5, "source_momentum": 0.95, "hidden_momentum": 0.9, "process_noise": 0.02}),
}


def method_of(name, trace, **settings):
    cls, chosen = RUNS[name]
    method = cls(golden_backbone(trace), views="flip", **chosen, **settings).double()
    method.configure_model()
    return method


@pytest.mark.parametrize("name", RUNS)
def test_method_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    rows = follow.follow(method)
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_passes(rows, trace)
    follow.assert_counts(rows, "selected", trace, "n_selected")
    follow.assert_final_parameters(method, trace)


@pytest.mark.parametrize("name", RUNS)
def test_scores_without_correction_follow_the_trace(name):
    trace = load_trace(f"{name}_trace")
    rows = follow.follow(method_of(name, trace, prior_correction="none"))
    follow.assert_scores(rows, trace, "logits_before_prior_correction")


@pytest.mark.parametrize("name", RUNS)
def test_running_mean_follows_the_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    for images, expected in zip(golden_batches(), trace["class_probs_ema"], strict=True):
        method.forward_and_adapt(images)
        np.testing.assert_allclose(method.mean_probabilities.numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["cmf", "cmf_sharp"])
def test_hidden_model_follows_the_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    for t, images in enumerate(golden_batches()):
        method.forward_and_adapt(images)
        np.testing.assert_allclose(1 - method.diagnostics()["kalman_gain"], trace["beta"][t], rtol=1e-12)
        np.testing.assert_allclose(method.hidden_variance.item(), trace["hidden_var"][t], rtol=1e-12)
    hidden = dict(method.hidden.vit.named_parameters())
    finals = {key.removeprefix("final_hidden."): v for key, v in trace.items() if key.startswith("final_hidden.")}
    assert len(finals) == 14
    for key, value in finals.items():
        np.testing.assert_allclose(hidden[key].numpy(), value, rtol=1e-6, atol=1e-9, err_msg=key)
