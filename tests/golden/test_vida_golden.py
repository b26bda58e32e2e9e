"""ViDA against the released code's traces, in float64."""

import numpy as np
import pytest
import torch

from tests.helpers.follow import assert_losses, assert_passes, assert_scores, follow
from tests.helpers.tiny_vit import golden_backbone, load_trace
from tta_bench.methods import ViDA

RELEASED = {"high_rank": 16, "scales": "released"}
SETTINGS = {
    "vida": {"lr": 0.02, "adapter_lr": 0.05, "threshold": 1.5e-5},
    "vida_sharp": {"lr": 0.0002, "adapter_lr": 0.0005, "threshold": 0.02},
    "vida_cifar_sharp": {
        "lr": 0.0001, "adapter_lr": 0.0003, "threshold": 0.02,
        "optimizer": "adam", "loss": "cross_entropy", "adapter_momentum": 0.999,
    },
}  # fmt: skip
BRANCHES = {"vida_down": "low.0", "vida_up": "low.1", "vida_down2": "high.0", "vida_up2": "high.1"}


class Golden(ViDA):
    def draw_views(self, images):
        return (images.flip(-1) if i % 2 else images for i in range(10))


def ours(name):
    """The reference's name of a weight, in our network."""
    owner, _, leaf = name.removesuffix(".weight").rpartition(".")
    return f"vit.{owner}.{BRANCHES[leaf]}.weight" if leaf in BRANCHES else f"vit.{name}"


def start_of(trace):
    """The adapters that the reference started from, where ours come from the source."""
    values = {}
    for key, value in trace.items():
        kind, _, name = key.partition(".")
        if kind == "init":
            values |= {f"{network}.{ours(name)}": torch.from_numpy(value) for network in ("backbone", "teacher")}
    for key, value in trace.items():
        if key.startswith("init_student."):
            values[f"backbone.{ours(key.removeprefix('init_student.'))}"] = torch.from_numpy(value)
    return values


@pytest.fixture(scope="module", params=SETTINGS)
def run(request):
    trace = load_trace(f"{request.param}_trace")
    method = Golden(golden_backbone(trace), **RELEASED, **SETTINGS[request.param]).double()
    method.configure_model()
    method.load_source_state(start_of(trace))
    return trace, follow(method), method


def test_scores_agree(run):
    trace, rows, _ = run
    assert_scores(rows, trace)


def test_losses_agree(run):
    trace, rows, _ = run
    assert_losses(rows, trace)


def test_passes_agree(run):
    trace, rows, _ = run
    assert_passes(rows, trace)


def test_uncertainty_and_scales_agree(run):
    trace, rows, _ = run
    names = {"uncertainty": "uncertainty", "scale_low": "scale1", "scale_high": "scale2"}
    for name, theirs in names.items():
        np.testing.assert_allclose([row.diagnostics[name] for row in rows], trace[theirs], rtol=1e-8, atol=0)


def test_final_weights_of_student_and_teacher_agree(run):
    trace, _, method = run
    finals = {key: value for key, value in trace.items() if key.startswith("final_")}
    assert len(finals) == 2 * (14 + 4)
    for key, value in finals.items():
        kind, _, name = key.partition(".")
        network = method.backbone if kind == "final_student" else method.teacher
        weight = network.get_parameter(ours(name)).detach().numpy()
        np.testing.assert_allclose(weight, value, rtol=1e-6, atol=1e-9, err_msg=key)
