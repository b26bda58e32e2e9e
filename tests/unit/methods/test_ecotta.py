"""EcoTTA's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers.methods import FAST
from tta_bench import testing
from tta_bench.functional import softmax_entropy
from tta_bench.methods import EcoTTA
from tta_bench.models.parts.partitions import ConvMeta, TokenMeta, attach_meta_parts, encode_with_distances, partitions
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def rng():
    return torch.Generator().manual_seed(0)


def method(**settings):
    return ready(lambda: EcoTTA(toy_backbone(), **{**FAST["ecotta"], **settings}))


def values(built):
    return [p.detach().clone() for p in built.meta]


def stepped(before, gradients, lr):
    return [p if g is None else p - lr * g for p, g in zip(before, gradients, strict=True)]


def same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_token_meta_part_is_affine_in_the_output_and_a_bottleneck_of_the_input():
    meta = TokenMeta(2, 1, rng())
    weights = {
        "scale": [2.0, 3.0], "shift": [10.0, 20.0],
        "down.weight": [[1.0, 1.0]], "down.bias": [0.5], "up.weight": [[100.0], [200.0]], "up.bias": [1.0, 2.0],
    }  # fmt: skip
    meta.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    hidden = 1.5 * (1 + math.erf(1.5 / math.sqrt(2))) / 2  # gelu(0.25 + 0.75 + 0.5)
    out = meta(torch.tensor([0.25, 0.75]), torch.tensor([5.0, 7.0]))
    assert out.tolist() == pytest.approx([2 * 5 + 10 + 100 * hidden + 1, 3 * 7 + 20 + 200 * hidden + 2])


def test_a_convolutional_meta_part_adds_two_normalised_maps():
    meta = ConvMeta(1, 1, 2, rng()).train()
    meta.branch[0].weight.data.copy_(torch.eye(3)[1:2].T @ torch.eye(3)[1:2])  # passes on every second pixel
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, ::2, ::2] = torch.tensor([[1.0, 3.0], [3.0, 1.0]])
    frozen = torch.tensor([[[[5.0, 5.0], [9.0, 9.0]]]])
    expected = torch.tensor([[[[-1.0, 0.0], [2.0, 1.0]]]])  # (-1, -1, 1, 1) + relu(-1, 1, 1, -1)
    torch.testing.assert_close(meta(x, frozen), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", ["two_phase", "single"])
def test_without_warm_up_the_first_prediction_is_the_source_models(mode):
    images = batches(1)[0]
    prediction = method(warmup_steps=0, mode=mode).forward_and_adapt(images)
    torch.testing.assert_close(prediction.detach(), toy_backbone()(images).detach(), rtol=0, atol=0)


@pytest.mark.parametrize(("count", "sizes"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 2]), (4, [1, 1, 1, 1])])
def test_a_residual_network_runs_in_partitions_of_whole_stages(count, sizes):
    network, images = toy_cnn("group"), batches(1)[0]
    frozen = toy_cnn("group")
    attach_meta_parts(network, count, 0, rng())
    parts = partitions(network)
    assert [len(part.frozen) for part in parts] == sizes
    for part in parts:  # BN passes on f(x) if it is told to, and the branch is silenced
        part.meta.norm = torch.nn.Identity()
        part.meta.branch[1].weight.data.zero_()
    torch.testing.assert_close(network(images), frozen(images))


def test_only_the_meta_parts_are_trained():
    built = method(bottleneck=4)
    assert built.trainable_parameters() == built.extra_parameters() == 2 * (32 + 32 + (32 * 4 + 4) + (4 * 32 + 32))


def test_the_warm_up_sees_other_colours_and_a_slight_blur_but_no_mirrored_images():
    built, shown = EcoTTA(toy_backbone(), **{**FAST["ecotta"], "warmup_steps": 1}), []
    built.backbone.register_forward_pre_hook(lambda _, args: shown.append(args[0]))
    images = torch.zeros(1000, 3, 16, 16)
    images[:, 0, 5, 3] = 1.0  # a red pixel left of the middle
    built.fit_source([(images, torch.zeros(1000, dtype=torch.long))])
    change = (shown[0] - shown[0][:, :, :1, -1:]).abs() > 1e-6  # against the background, which contrast may lift
    around = torch.zeros(16, 16, dtype=torch.bool)
    around[4:7, 2:5] = True
    assert not change[..., ~around].any()
    assert change[:, :, 5, 3].any(dim=1).all()
    blurred = change[:, :, 4, 3].any(dim=1)
    assert blurred.float().mean().item() == pytest.approx(0.2, abs=0.04)
    red, green, blue = shown[0][:, :, 5, 3].T
    grey = (red == green) & (green == blue)
    assert grey.float().mean().item() == pytest.approx(0.1, abs=0.03)
    same = (shown[0] == images).flatten(1).all(dim=1)
    assert same.float().mean().item() == pytest.approx(0.6 * 0.8 * 0.9, abs=0.05)


def test_more_partitions_than_blocks_are_refused():
    with pytest.raises(ValueError, match="2 blocks cannot be split into 3 partitions"):
        EcoTTA(toy_backbone(), partitions=3).configure_model()


@pytest.mark.parametrize("local", [True, False])
def test_a_distance_is_measured_at_the_partitions_own_input(local):
    built = method(warmup_steps=0)
    partitions(built.backbone)[0].meta.shift.data.fill_(-0.25)
    _, distances = encode_with_distances(built.backbone, batches(1)[0], local=local)
    torch.testing.assert_close(distances, torch.tensor([0.25, 0.0]).expand(8, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("k", [0, 1])
def test_a_distance_has_gradients_in_its_own_meta_part_only(local, k):
    built = method()
    _, distances = encode_with_distances(built.backbone, batches(1)[0], local=local)
    gradients = torch.autograd.grad(distances[:, k].sum(), built.meta, allow_unused=True)
    own = {id(p) for p in partitions(built.backbone)[k].meta.parameters()}
    for p, gradient in zip(built.meta, gradients, strict=True):
        assert (gradient is not None and bool(gradient.any())) == (id(p) in own)


def test_the_first_phase_keeps_no_graph_of_the_network():
    built = method()
    features, _ = encode_with_distances(built.backbone, batches(1)[0], local=True)
    assert not features.requires_grad
    torch.testing.assert_close(features, built.backbone.features(batches(1)[0]).detach())


def test_two_phases_step_on_the_distances_then_on_the_entropies():
    built, images = method(lr=0.1, regularization=2.0, entropy_margin=1.0), batches(1)[0]
    built.optimizer = torch.optim.SGD(built.meta, lr=0.1)
    start = values(built)
    _, distances = encode_with_distances(built.backbone, images, local=True)
    middle = stepped(start, torch.autograd.grad(2 * distances.mean(0).sum(), built.meta), 0.1)
    prediction = built.forward_and_adapt(images)
    end = values(built)

    with torch.no_grad():
        for p, value in zip(built.meta, middle, strict=True):
            p.copy_(value)
    logits = built.backbone(images)
    torch.testing.assert_close(prediction, logits)
    entropies = softmax_entropy(logits)
    chosen = entropies[entropies < math.log(4)]
    same(end, stepped(middle, torch.autograd.grad(chosen.mean(), built.meta), 0.1))
    assert built.passes() == (2, 1)


def test_a_single_phase_steps_on_the_sum():
    built, images = method(lr=0.1, regularization=2.0, entropy_margin=1.0, mode="single"), batches(1)[0]
    start = values(built)
    features, distances = encode_with_distances(built.backbone, images, local=False)
    entropy = softmax_entropy(built.backbone.classify(features)).mean()
    expected = stepped(start, torch.autograd.grad(2 * distances.mean(0).sum() + entropy, built.meta), 0.1)
    built.forward_and_adapt(images)
    same(values(built), expected)
    assert built.passes() == (1, 1)


def test_only_entropies_below_the_margin_count():
    built = method(entropy_margin=0.5)  # of ln 4: ln 2
    logits = torch.tensor([[9.0, 0, 0, 0], [9.0, 9, 0, 0], [9.0, 9, 9, 0], [5.0, 0, 0, 0]])
    chosen = built.confident_entropies(logits)
    torch.testing.assert_close(chosen, softmax_entropy(logits)[[0, 3]])
    assert built.passes() == (2, 0.5)


@pytest.mark.parametrize("mode", ["two_phase", "single"])
def test_without_a_confident_image_there_is_no_step_on_the_entropies(mode):
    built, images = method(entropy_margin=0.0, mode=mode, lr=0.1), batches(1)[0]
    start = values(built)
    _, distances = encode_with_distances(built.backbone, images, local=True)
    expected = stepped(start, torch.autograd.grad(0.5 * distances.mean(0).sum(), built.meta), 0.1)
    losses, update = [], built.update
    built.update = lambda loss: (losses.append(loss.item()), update(loss))
    built.forward_and_adapt(images)
    same(values(built), expected)
    assert losses == pytest.approx([0.5 * distances.mean(0).sum().item()])
    assert built.passes() == (2 if mode == "two_phase" else 1, 0)


@pytest.mark.parametrize("mode", ["two_phase", "single"])
def test_a_small_step_lowers_the_entropy_and_the_distance(mode):
    images = batches(1)[0]
    for settings, measure in (
        ({"regularization": 0.0}, lambda built: softmax_entropy(built.backbone(images)).mean()),
        ({"entropy_margin": 0.0}, lambda built: encode_with_distances(built.backbone, images, local=True)[1].sum()),
    ):
        built = method(**{"entropy_margin": 1.0, "lr": 1e-4, "mode": mode, **settings})
        before = measure(built)
        built.forward_and_adapt(images)
        assert measure(built) < before


def test_the_single_mode_keeps_the_contract():
    testing.check_method(EcoTTA, **FAST["ecotta"], mode="single")
