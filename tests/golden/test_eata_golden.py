"""ETA, EATA and RDumb against the traces of the released code, in float64."""

import math

import numpy as np
import pytest
from torch.nn.utils import parameters_to_vector

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.methods import EATA, ETA, RDumb

ORIGINAL = {"lr": 0.03, "entropy_margin": 2.2065 / math.log(10), "cosine_margin": 0.9985}
SHARP = {"lr": 0.0004, "entropy_margin": 1.5 / math.log(10), "cosine_margin": 0.75}
RUNS = {
    "eta": (ETA, ORIGINAL),
    "eta_sharp": (ETA, SHARP),
    "eata": (EATA, {**ORIGINAL, "fisher_weight": 100.0, "num_source": 64}),
    "eata_sharp": (EATA, {**SHARP, "fisher_weight": 20.0, "num_source": 64}),
    "rdumb": (RDumb, {**ORIGINAL, "reset_every": 5}),
    "rdumb_sharp": (RDumb, {**SHARP, "reset_every": 5}),
}


def method_of(name, trace):
    cls, settings = RUNS[name]
    method = cls(golden_backbone(trace), **settings).double()
    method.configure_model()
    if cls is EATA:
        images = golden_batches()
        method.fit_source([images[i] for i in (1, 3, 4, 6)])
    return method


@pytest.mark.parametrize("name", RUNS)
def test_method_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    rows = follow.follow(method)
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_passes(rows, trace)
    follow.assert_counts(rows, "reliable", trace, "n_reliable")
    follow.assert_counts(rows, "selected", trace, "n_selected")
    follow.assert_final_parameters(method, trace)


@pytest.mark.parametrize("name", RUNS)
def test_running_mean_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    assert not np.isnan(trace["model_probs"]).any()
    for images, expected in zip(golden_batches(), trace["model_probs"], strict=True):
        method.forward_and_adapt(images)
        np.testing.assert_allclose(method.mean_probabilities.numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["eata", "eata_sharp"])
def test_fisher_information_is_that_of_the_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    names = {id(p): key for key, p in method.backbone.vit.named_parameters()}
    expected = np.concatenate([trace[f"fisher.{names[id(p)]}"] for p in method.adapted])
    assert len(expected) == len(parameters_to_vector(method.adapted)) == 14 * 64
    np.testing.assert_allclose(method.fisher.numpy(), expected, rtol=1e-8, atol=1e-14)
