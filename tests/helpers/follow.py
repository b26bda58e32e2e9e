"""Runs a method over the golden stream and compares it with the trace of the reference code."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tests.helpers.tiny_vit import golden_batches
from tta_bench.methods import TTAMethod


class Row(NamedTuple):
    """Outputs of a method for one batch."""

    scores: np.ndarray
    loss: float  # passed to ``update``; nan without a step
    forward_images: int
    backward_images: int
    diagnostics: dict[str, float]


def follow(method: TTAMethod) -> list[Row]:
    """Feed the golden batches to a configured method in float64."""
    losses, rows, meter, update = [], [], method.backbone.meter, method.update

    def recorded(loss):
        losses.append(loss.item())
        update(loss)

    method.update = recorded
    for images in golden_batches():
        losses.clear()
        forward, backward = meter.forward_samples, meter.backward_samples
        scores = method.forward_and_adapt(images).detach().numpy()
        passes = (meter.forward_samples - forward, meter.backward_samples - backward)
        rows.append(Row(scores, losses[0] if losses else math.nan, *passes, dict(method.diagnostics())))
    return rows


def assert_scores(rows: list[Row], trace: dict[str, np.ndarray], key: str = "logits") -> None:
    for t, row in enumerate(rows):
        tolerance = max(1e-9, 20 * trace["sensitivity"][t])
        np.testing.assert_allclose(row.scores, trace[key][t], rtol=0, atol=tolerance, err_msg=f"batch {t}")


def assert_losses(rows: list[Row], trace: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose([row.loss for row in rows], trace["loss"], rtol=1e-8, atol=1e-9)


def assert_passes(rows: list[Row], trace: dict[str, np.ndarray]) -> None:
    assert [row.forward_images for row in rows] == trace["forward_images"].tolist()
    assert [row.backward_images for row in rows] == trace["backward_images_nonzero_grad"].tolist()


def assert_counts(rows: list[Row], diagnostic: str, trace: dict[str, np.ndarray], key: str) -> None:
    assert [row.diagnostics[diagnostic] for row in rows] == trace[key].tolist()


def assert_final_parameters(method: TTAMethod, trace: dict[str, np.ndarray]) -> None:
    finals = {key.removeprefix("final."): value for key, value in trace.items() if key.startswith("final.")}
    assert len(finals) == 14
    parameters = dict(method.backbone.vit.named_parameters())
    for key, value in finals.items():
        np.testing.assert_allclose(parameters[key].detach().numpy(), value, rtol=1e-6, atol=1e-9, err_msg=key)


def positions(images: Tensor, stream: Tensor) -> list[int]:
    """Position of each image in a stream of distinct images."""
    same = (images.flatten(1)[:, None] == stream.flatten(1)).all(dim=2)  # (M, N)
    assert same.sum(dim=1).tolist() == [1] * len(images)
    return same.long().argmax(dim=1).tolist()


def assert_final_student_and_teacher(method: TTAMethod, trace: dict[str, np.ndarray]) -> None:
    for name, network in (("student", method.backbone), ("teacher", method.teacher)):
        finals = {key: value for key, value in trace.items() if key.startswith(f"final_{name}.")}
        assert len(finals) == 14
        parameters = dict(network.vit.named_parameters())
        for key, value in finals.items():
            ours = parameters[key.removeprefix(f"final_{name}.")].detach().numpy()
            np.testing.assert_allclose(ours, value, rtol=1e-6, atol=1e-9, err_msg=key)
