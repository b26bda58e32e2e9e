"""RoTTA against the traces of the reference code, in float64."""

import numpy as np
import pytest
import torch

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench.methods import RoTTA

RUNS = {"rotta": 0.005, "rotta_sharp": 0.002}


def method_of(name, trace):
    settings = {"lr": RUNS[name], "memory_size": 32, "update_every": 16, "teacher_momentum": 0.95, "views": "flip"}
    method = RoTTA(golden_backbone(trace), **settings).double()
    method.configure_model()
    return method


def padded(values, size, filler):
    return [*values, *[filler] * (size - len(values))]


@pytest.mark.parametrize("name", RUNS)
def test_rotta_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    rows = follow.follow(method)
    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    follow.assert_passes(rows, trace)
    follow.assert_final_student_and_teacher(method, trace)


@pytest.mark.parametrize("name", RUNS)
def test_the_memory_holds_the_same_images_in_the_same_order(name):
    trace = load_trace(f"{name}_trace")
    method = method_of(name, trace)
    stream = torch.cat(golden_batches())
    for t, images in enumerate(golden_batches()):
        method.forward_and_adapt(images)
        memory = method.memory
        ids = follow.positions(memory.images, stream)
        assert padded(ids, 32, -1) == trace["memory_sample_ids"][t].tolist()
        ages = padded((memory.ages / 32).tolist(), 32, -1.0)
        np.testing.assert_array_equal(ages, trace["memory_ages"][t])
        assert memory.labels.bincount(minlength=10).tolist() == trace["memory_per_class"][t].tolist()
