"""PeTTA against the traces of the released code, in float64."""

import numpy as np
import pytest
import torch

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.methods import PeTTA

RUNS = {
    "petta": {"lr": 0.005, "loss": "cross_entropy"},
    "petta_sharp": {"lr": 0.002, "loss": "cross_entropy"},
    "petta_sce_sharp": {"lr": 0.002, "loss": "symmetric"},
}


class Recorded(PeTTA):
    """PeTTA that keeps its regulariser's values and its memory's contents."""

    def configure_adaptation(self):
        super().configure_adaptation()
        self.regularisers, self.memories, self.stream = [], [], torch.cat(golden_batches())

    def regulariser(self):
        value = super().regulariser()
        self.regularisers.append(value.item())
        self.memories.append(follow.positions(self.memory.images, self.stream))
        return value


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    trace = load_trace(f"{request.param}_trace")
    settings = {"memory_size": 32, "alpha0": 0.05, "views": "flip", **RUNS[request.param]}
    method = Recorded(golden_backbone(trace), **settings).double()
    method.configure_model()
    images = golden_batches()
    method.fit_source([images[i] for i in (1, 3, 4, 6)])
    return trace, follow.follow(method), method


def test_petta_follows_its_trace(run):
    trace, rows, method = run
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_final_student_and_teacher(method, trace)


def test_passes_are_those_of_the_trace_but_for_the_unused_one(run):
    trace, rows, method = run
    unused = trace["n_memory"] if method.hparams.loss == "cross_entropy" else 0
    assert [row.forward_images for row in rows] == (trace["forward_images"] - unused).tolist()
    assert [row.backward_images for row in rows] == trace["backward_images_nonzero_grad"].tolist()


def test_divergence_regulariser_and_share_agree(run):
    trace, rows, method = run
    ours = {key: [row.diagnostics[key] for row in rows] for key in ("divergence", "teacher_share")}
    np.testing.assert_allclose(ours["divergence"], trace["divergence_score"], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(ours["teacher_share"], trace["alpha"], rtol=1e-8)
    np.testing.assert_allclose(method.regularisers, trace["regularization"], rtol=1e-8)


def test_the_memory_holds_the_same_images_in_the_same_order(run):
    trace, rows, method = run
    assert [row.diagnostics["memory_size"] for row in rows] == trace["n_memory"].tolist()
    assert [ids + [-1] * (32 - len(ids)) for ids in method.memories] == trace["memory_sample_ids"].tolist()


def test_source_statistics_and_running_means_agree(run):
    trace, _, method = run
    np.testing.assert_allclose(method.source_mean.numpy(), trace["proto_mean"], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(method.source_variance.numpy(), trace["proto_var"], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(method.class_mean.numpy(), trace["final_mem_proto"], rtol=1e-6, atol=1e-9)
