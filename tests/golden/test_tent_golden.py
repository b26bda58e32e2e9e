"""Source and Tent against the reference implementations' traces, in float64."""

import numpy as np
import pytest

from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.methods import Source, Tent

TENT = {
    "tent": {"lr": 0.1, "nesterov": False},
    "tent_sharp": {"lr": 0.0005, "nesterov": False},
    "tent_nesterov": {"lr": 0.1, "nesterov": True},
    "tent_nesterov_sharp": {"lr": 0.0005, "nesterov": True},
    "tent_adam_sharp": {"lr": 0.0005, "optimizer": "adam"},
}


def assert_follows(method, trace):
    method.double().configure_model()
    for t, images in enumerate(golden_batches()):
        logits = method.forward_and_adapt(images).detach().numpy()
        tolerance = max(1e-9, 20 * trace["sensitivity"][t])
        np.testing.assert_allclose(logits, trace["logits"][t], rtol=0, atol=tolerance, err_msg=f"batch {t}")


@pytest.mark.parametrize("name", ["source", "source_sharp"])
def test_source_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    assert_follows(Source(golden_backbone(trace)), trace)


@pytest.mark.parametrize("name", TENT)
def test_tent_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    assert_follows(Tent(golden_backbone(trace), **TENT[name]), trace)


@pytest.mark.parametrize("name", TENT)
def test_tent_ends_with_the_adapted_parameters(name):
    trace = load_trace(f"{name}_trace")
    method = Tent(golden_backbone(trace), **TENT[name])
    method.double().configure_model()
    for images in golden_batches():
        method.forward_and_adapt(images)
    parameters = dict(method.backbone.vit.named_parameters())
    finals = {k.removeprefix("final."): v for k, v in trace.items() if k.startswith("final.")}
    assert len(finals) == 14
    for key, value in finals.items():
        np.testing.assert_allclose(parameters[key].detach().numpy(), value, rtol=1e-6, atol=1e-9, err_msg=key)
