"""ROID: its formulas by hand, and branches that the traces do not reach."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import soft_likelihood_ratio, symmetric_cross_entropy
from tta_bench.methods import ROID
from tta_bench.methods.roid import unit_range
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def test_unit_range_goes_from_zero_to_one():
    assert unit_range(torch.tensor([3.0, 5.0, 4.0])).tolist() == [0.0, 1.0, 0.5]
    assert unit_range(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]


def test_diverse_images_are_selected_and_weigh_more_the_surer_they_are():
    method = ready(lambda: ROID(toy_backbone(), temperature=0.5, probability_momentum=0.9).double())
    method.mean_probabilities = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    probabilities = torch.tensor(
        [
            [0.97, 0.01, 0.01, 0.01],  # the usual class
            [0.01, 0.97, 0.01, 0.01],  # another one, as sure
            [0.40, 0.20, 0.20, 0.20],  # undecided
        ]
    ).double()
    weights, selected = method.weigh(probabilities.log())
    assert selected.tolist() == [False, True, False]
    assert weights[0].item() == pytest.approx(1.0)  # not diverse
    assert weights[1].item() == pytest.approx(math.exp(1 / 0.5))  # most diverse, surest
    assert weights[2].item() == pytest.approx(1.0)  # not sure
    expected = 0.9 * torch.tensor([1.0, 0.0, 0.0, 0.0]).double() + 0.1 * probabilities.mean(dim=0)
    torch.testing.assert_close(method.mean_probabilities, expected)


def test_a_batch_of_one_image_counts_fully():
    method = ready(lambda: ROID(toy_backbone(), views="identity"))
    losses, update = [], method.update
    method.update = lambda loss: (losses.append(loss.item()), update(loss))
    image = batches(2)[1][:1]
    logits = method.backbone(image).detach()
    method.forward_and_adapt(image)
    expected = soft_likelihood_ratio(logits) + symmetric_cross_entropy(logits, logits)
    assert losses == pytest.approx(expected.tolist())


def test_a_small_step_lowers_the_loss():
    method = ready(lambda: ROID(toy_backbone(), lr=1e-3, source_momentum=1.0, views="flip"))
    images = batches(2)[1]
    weights, selected = method.weigh(method.backbone(images).detach())
    method.reset()

    def loss():
        logits, mirrored = method.backbone(images)[selected], method.backbone(images.flip(-1))[selected]
        per_image = soft_likelihood_ratio(logits) + symmetric_cross_entropy(mirrored, logits)
        return (weights[selected] * per_image).sum().item()

    before = loss()
    method.forward_and_adapt(images)
    assert loss() < before


def test_the_weights_lose_a_share_of_their_distance_to_the_source():
    method = ready(lambda: ROID(toy_backbone(), lr=0.0, source_momentum=0.75))
    source = [p.detach().clone() for p in method.adapted]
    for p in method.adapted:
        p.data += 1.0
    method.forward_and_adapt(batches(1)[0])
    for p, value in zip(method.adapted, source, strict=True):
        torch.testing.assert_close(p.detach(), value + 0.75)


@pytest.mark.parametrize("correction", ["logits", "probabilities", "none"])
def test_prior_correction_favours_the_classes_of_the_batch(correction):
    method = ready(lambda: ROID(toy_backbone(), prior_correction=correction).double())
    logits = torch.tensor([[2.0, -1.0, 0.5, 0.0], [1.0, 1.5, -2.0, 0.0]]).double()
    p = logits.softmax(dim=1)
    prior = [float(p[:, k].mean()) for k in range(4)]
    smooth = 0.5 / max(prior)  # two images, four classes
    smoothed = torch.tensor([(share + smooth) / (1 + 4 * smooth) for share in prior]).double()
    expected = {"logits": logits * smoothed, "probabilities": (p * smoothed).log(), "none": logits}[correction]
    scores = method.corrected(logits)
    if correction == "probabilities":  # up to what softmax takes out
        scores, expected = scores.log_softmax(dim=1), expected.log_softmax(dim=1)
    torch.testing.assert_close(scores, expected)


def test_views_are_drawn_from_the_seed():
    def adapted(seed, views):
        method = ready(lambda: ROID(toy_backbone(), lr=0.01, seed=seed, views=views))
        method.forward_and_adapt(batches(1)[0])
        return torch.cat([p.detach().flatten() for p in method.adapted])

    assert torch.equal(adapted(0, "roid"), adapted(0, "roid"))
    assert not torch.equal(adapted(0, "roid"), adapted(1, "roid"))
    assert torch.equal(adapted(0, "flip"), adapted(1, "flip"))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_residual_networks_are_adapted(norm, optimizer):
    method = ready(lambda: ROID(toy_cnn(norm), optimizer=optimizer))
    before = [p.detach().clone() for p in method.adapted]
    scores = method.forward_and_adapt(batches(2)[1])
    assert torch.isfinite(scores).all()
    assert not all(torch.equal(p, value) for p, value in zip(method.adapted, before, strict=True))
