"""DPCore against the released code's trace, in float64."""

import numpy as np
import pytest
import torch

from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.config.compose import build, compose_run


@pytest.fixture(scope="module")
def official_run():
    """Our `dpcore_official` on the golden stream: per batch logits and diagnostics, and the method at the end."""
    trace = load_trace("dpcore_trace")
    method = build(compose_run(["method=dpcore_official", "tuned=off"]).config.method)(golden_backbone())
    method.double().configure_model()
    names = {"initial_prompt": "prompt_init", "source_mean": "source_mean", "source_std": "source_std"}
    method.load_source_state({ours: torch.from_numpy(trace[theirs]) for ours, theirs in names.items()})
    rows = []
    for images in golden_batches():
        forward, backward = method.backbone.meter.forward_samples, method.backbone.meter.backward_samples
        logits = method.forward_and_adapt(images)
        passes = (
            (method.backbone.meter.forward_samples - forward) / len(images),
            (method.backbone.meter.backward_samples - backward) / len(images),
        )
        rows.append({"logits": logits.detach().numpy(), "passes": passes, **method.diagnostics()})
    return trace, rows, method


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_every_batch_gets_the_same_decision(official_run):
    trace, rows, _ = official_run
    assert [bool(r["is_new_domain"]) for r in rows] == trace["is_new"].tolist()
    assert sum(trace["is_new"]) == 9


def test_distances_agree(official_run):
    trace, rows, _ = official_run
    close([r["distance_raw"] for r in rows], trace["d_raw"])
    close([r["distance_weighted"] for r in rows[1:]], trace["d_weighted"][1:])


def test_logits_agree(official_run):
    trace, rows, _ = official_run
    close(np.stack([r["logits"] for r in rows]), trace["logits"])


def test_final_coreset_agrees(official_run):
    trace, _, method = official_run
    for name in ("mean", "std", "prompt"):
        close(getattr(method.coreset, name).numpy(), trace[f"coreset_{name}"])


def test_a_known_batch_costs_two_forward_passes_and_one_backward_pass(official_run):
    trace, rows, _ = official_run
    known = [r["passes"] for r, is_new in zip(rows, trace["is_new"], strict=True) if not is_new]
    assert known == [(2.0, 1.0)] * 5


def test_a_new_batch_costs_fifty_more(official_run):
    trace, rows, _ = official_run
    new = [r["passes"] for r, is_new in zip(rows, trace["is_new"], strict=True) if is_new]
    assert new == [(51.0, 50.0)] + [(52.0, 50.0)] * 8
