"""ETA, EATA and RDumb: their formulas by hand, and branches that the traces do not reach."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from tta_bench.functional import softmax_entropy
from tta_bench.methods import EATA, ETA, RDumb
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn, toy_data

EVERYTHING = {"entropy_margin": 1.0, "cosine_margin": 1.1}  # all images pass


def weighted_entropy(logits, margin):
    entropy = softmax_entropy(logits)
    return ((margin - entropy).exp().detach() * entropy).mean().item()


def test_a_small_step_lowers_the_weighted_entropy():
    method = ready(lambda: ETA(toy_backbone(), lr=1e-3, **EVERYTHING))
    images = batches(2)[1]
    before = weighted_entropy(method.forward_and_adapt(images), math.log(4))
    assert weighted_entropy(method.backbone(images), math.log(4)) < before


def test_sure_images_weigh_more():
    """The step is that of the entropies weighted by e^(E_0 - H), with constant weights."""
    images = batches(6)[2].double()
    method = ready(lambda: ETA(toy_backbone(), lr=1.0, momentum=0.0, **EVERYTHING).double())
    before = [p.detach().clone() for p in method.adapted]
    entropy = softmax_entropy(method.backbone(images))
    weights = [4 * math.exp(-h) for h in entropy.tolist()]  # E_0 = ln 4
    loss = sum(w * h for w, h in zip(weights, entropy, strict=True)) / len(images)
    gradients = torch.autograd.grad(loss, method.adapted)
    method.forward_and_adapt(images)
    for p, start, gradient in zip(method.adapted, before, gradients, strict=True):
        torch.testing.assert_close(p.detach(), start - gradient)


def test_an_image_is_unlike_if_its_cosine_to_the_running_mean_is_below_the_margin():
    method = ready(lambda: ETA(toy_backbone(), cosine_margin=0.7))
    probabilities = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    assert method.is_unlike(probabilities).tolist() == [True, True, True]  # no mean yet
    method.mean_probabilities = torch.tensor([0.8, 0.2, 0.0, 0.0])
    assert method.is_unlike(probabilities).tolist() == [False, True, True]


def test_the_running_mean_is_that_of_selected_images_and_takes_a_tenth_of_each_batch():
    method, expected = ready(lambda: ETA(toy_backbone(), cosine_margin=1.1)), None
    for images in batches(3):
        entropy = softmax_entropy(method.backbone(images)).detach()
        margin = entropy.sort().values[3:5].mean()  # four of the eight images are below
        method.hparams.entropy_margin = float(margin) / math.log(4)
        logits = method.forward_and_adapt(images).detach()
        mean = logits.softmax(dim=1)[entropy < margin].mean(dim=0)
        expected = mean if expected is None else 0.9 * expected + 0.1 * mean
        torch.testing.assert_close(method.mean_probabilities, expected)


def test_without_a_reliable_image_nothing_moves():
    method = ready(lambda: ETA(toy_backbone(), **EVERYTHING))
    method.forward_and_adapt(batches(1)[0])
    before = [p.detach().clone() for p in method.adapted]
    mean = method.mean_probabilities.clone()
    method.hparams.entropy_margin = 0.0
    method.forward_and_adapt(batches(1)[0])
    assert method.passes() == (1, 0)
    assert method.diagnostics() == {"reliable": 0.0, "selected": 0.0}
    assert torch.equal(method.mean_probabilities, mean)
    assert all(torch.equal(a, b) for a, b in zip(before, method.adapted, strict=True))


def test_reset_forgets_the_running_mean():
    method = ready(lambda: ETA(toy_backbone(), **EVERYTHING))
    method.forward_and_adapt(batches(1)[0])
    assert len(method.mean_probabilities) == 4
    method.reset()
    assert len(method.mean_probabilities) == 0


# ---- EATA ------------------------------------------------------------------------------------------------------


def test_the_penalty_weighs_squared_distances_to_the_source_by_importance():
    method = ready(lambda: EATA(toy_backbone(), fisher_weight=3.0, num_source=16))
    method.fisher = torch.zeros_like(method.fisher)
    method.fisher[0], method.fisher[1], method.fisher[-1] = 0.5, 7.0, 2.0
    assert method.penalty().item() == 0.0
    with torch.no_grad():
        method.adapted[0][0] += 2.0
        method.adapted[-1][-1] -= 3.0
    assert method.penalty().item() == pytest.approx(3 * (0.5 * 4 + 2 * 9), rel=1e-6)


def test_the_penalty_holds_the_weights_back():
    def drift(weight):
        method = ready(lambda: EATA(toy_backbone(), lr=0.05, fisher_weight=weight, num_source=32, **EVERYTHING))
        for images in batches(6):
            method.forward_and_adapt(images)
        method.hparams.fisher_weight = 1.0
        return method.penalty().item()

    assert drift(1000.0) < 0.2 * drift(0.0)


def test_fisher_information_is_the_mean_over_batches_of_squared_mean_gradients():
    images = list(toy_data().source_dataloader(EATA.source_need, batch_size=16))
    method = EATA(toy_backbone(), num_source=20)
    method.configure_model()
    with torch.no_grad():  # as a Lightning Trainer calls it
        method.fit_source(images)

    squares = []
    for batch in (images[0], images[1][:4]):  # cut at 20
        logits = method.backbone(batch / 255)
        gradients = torch.autograd.grad(cross_entropy(logits, logits.argmax(dim=1)), method.adapted)
        squares.append(torch.cat([g.flatten() ** 2 for g in gradients]))
    torch.testing.assert_close(method.fisher, (squares[0] + squares[1]) / 2)
    assert method.fisher.max() > 0
    assert all(p.grad is None for p in method.parameters())


def test_fisher_information_is_measured_where_a_stream_has_gradients_off():
    with torch.no_grad():
        method = ready(lambda: EATA(toy_backbone(), num_source=16))
    assert method.fisher.max() > 0


def test_fisher_information_outlives_a_reset():
    method = ready(lambda: EATA(toy_backbone(), num_source=16))
    before = method.fisher.clone()
    method.reset()
    assert torch.equal(method.fisher, before)


def test_too_few_source_images_are_refused():
    with pytest.raises(ValueError, match="EATA needs 2000 source images but got 64: lower num_source"):
        ready(lambda: EATA(toy_backbone()))


def test_eata_without_its_source_is_refused():
    with pytest.raises(RuntimeError, match="EATA needs the source"):
        EATA(toy_backbone())(batches(1)[0])


# ---- RDumb -----------------------------------------------------------------------------------------------------


def test_rdumb_starts_over_after_so_many_batches_whatever_their_size():
    method = ready(lambda: RDumb(toy_backbone(), lr=0.1, reset_every=3, **EVERYTHING))
    stream = batches(3)
    first = [method.forward_and_adapt(images).detach() for images in stream]
    again = [method.forward_and_adapt(images).detach() for images in stream]  # batches 3 to 5
    assert torch.equal(torch.cat(first), torch.cat(again))
    for images in (stream[0][:1], stream[1][:5], stream[2]):
        method.forward_and_adapt(images)
    assert torch.equal(method.forward_and_adapt(stream[0]), first[0])


def test_rdumb_keeps_what_it_learned_until_then():
    settings = {"lr": 0.1, **EVERYTHING}
    eta, rdumb = ready(lambda: ETA(toy_backbone(), **settings)), ready(lambda: RDumb(toy_backbone(), **settings))
    for images in batches(5):
        assert torch.equal(eta.forward_and_adapt(images), rdumb.forward_and_adapt(images))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("cls", [ETA, EATA, RDumb])
def test_residual_networks_are_adapted(cls, norm):
    settings = {"num_source": 32} if cls is EATA else {}
    method = ready(lambda: cls(toy_cnn(norm), **EVERYTHING, **settings))
    images = batches(1)[0]
    first = method.forward_and_adapt(images).detach()
    assert method.diagnostics()["selected"] == len(images)
    assert not torch.equal(method.forward_and_adapt(images), first)
