"""LAME against the traces of the released code, in float64."""

import numpy as np
import pytest

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, load_trace
from tta_bench.methods import LAME

SETTINGS = {
    "rbf5": {"affinity": "rbf", "symmetric": False},
    "knn5": {"affinity": "knn", "symmetric": False},
    "knn5_sym": {"affinity": "knn", "symmetric": True},
    "linear": {"affinity": "linear", "symmetric": False},
}


@pytest.mark.parametrize("head", ["lame", "lame_sharp"])
@pytest.mark.parametrize("variant", SETTINGS)
def test_lame_follows_its_trace(head, variant):
    trace = load_trace(f"{head}_trace")
    method = LAME(golden_backbone(trace), neighbors=5, **SETTINGS[variant]).double()
    method.configure_model()
    rows = follow.follow(method)
    follow.assert_scores(rows, trace, key=f"Y_{variant}")
    follow.assert_passes(rows, trace)
    follow.assert_counts(rows, "iterations", trace, f"n_iter_{variant}")
    energies = [row.diagnostics["energy"] for row in rows]
    np.testing.assert_allclose(energies, trace[f"energy_{variant}"], rtol=1e-9)
