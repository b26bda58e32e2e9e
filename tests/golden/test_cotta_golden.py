"""CoTTA against the traces of the released code, in float64."""

import json

import numpy as np
import pytest
import torch

from tests.helpers import follow
from tests.helpers.tiny_vit import golden_backbone, load_trace
from tta_bench.methods import CoTTA

CIFAR = {"loss": "cross_entropy", "optimizer": "adam"}
RUNS = {
    "cotta": {"lr": 0.05, "threshold": 0.175, "restore_probability": 0.0},
    "cotta_sharp": {"lr": 0.0005, "threshold": 0.45, "restore_probability": 0.0},
    "cotta_restore_sharp": {"lr": 0.0005, "threshold": 0.45, "restore_probability": 0.05},
    "cotta_cifar": {**CIFAR, "lr": 0.001, "threshold": 0.1765, "restore_probability": 0.0},
    "cotta_cifar_sharp": {**CIFAR, "lr": 0.0003, "threshold": 0.78, "restore_probability": 0.0},
}


class Recorded(CoTTA):
    """CoTTA that restores the weights of the trace's masks."""

    def take(self, trace):
        names = [name for name, _ in json.loads(str(trace["hparams"]))["mask_names"]]
        parameters = dict(self.backbone.vit.named_parameters())
        sizes = [parameters[name].numel() for name in names]
        self.masks = {id(parameters[name]): [] for name in names}
        for packed in trace["restore_masks"]:
            flat = torch.from_numpy(np.unpackbits(packed, count=sum(sizes)).astype(bool))
            for name, part in zip(names, flat.split(sizes), strict=True):
                self.masks[id(parameters[name])].append(part.view_as(parameters[name]))

    def draw_mask(self, rng, parameter):
        return self.masks[id(parameter)].pop(0)


@pytest.mark.parametrize("name", RUNS)
def test_cotta_follows_its_trace(name):
    trace = load_trace(f"{name}_trace")
    method = Recorded(golden_backbone(trace), views="flip", **RUNS[name]).double()
    method.configure_model()
    if "restore_masks" in trace:
        method.take(trace)

    rows = follow.follow(method)

    follow.assert_scores(rows, trace)
    follow.assert_losses(rows, trace)
    # The released CIFAR code computes the views of every batch, used or not.
    assert [row.forward_images for row in rows] == (16 * (3 + 32 * trace["used_aug"])).tolist()
    assert [row.backward_images for row in rows] == trace["backward_images_nonzero_grad"].tolist()
    follow.assert_counts(rows, "averages_views", trace, "used_aug")
    confidences = [row.diagnostics["anchor_confidence"] for row in rows]
    np.testing.assert_allclose(confidences, trace["anchor_conf"], rtol=1e-9)
    follow.assert_final_student_and_teacher(method, trace)
