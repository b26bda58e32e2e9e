"""Continual-MAE's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional import soft_cross_entropy, symmetric_cross_entropy
from tta_bench.methods import CMAE
from tta_bench.models.loading.load_model import load_model
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn

IMAGES = batches(1)[0]


def method(**settings):
    return ready(lambda: CMAE(toy_backbone(), **{"num_views": 2, **settings}))


@pytest.mark.parametrize(("mask_ratio", "count"), [(0.5, 8), (0.34, 5), (0.99, 15), (1.0, 16)])
def test_the_floor_of_the_ratio_of_16_patches_is_hidden_in_every_image(mask_ratio, count):
    mask = method(mask_ratio=mask_ratio).choose_mask(IMAGES)
    assert (mask.dtype, mask.shape) == (torch.bool, (8, 16))
    assert mask.sum(dim=1).tolist() == [count] * 8


def test_a_ratio_that_hides_nothing_is_refused():
    with pytest.raises(ValueError, match=r"a mask_ratio of 0.05 hides none of 16 patches"):
        method(mask_ratio=0.05).forward_and_adapt(IMAGES)


def test_the_patches_whose_mean_varies_most_over_views_are_hidden(monkeypatch):
    built = method(num_views=3, mask_ratio=0.25)
    spread = torch.tensor([[0.0, 5.0, 1.0, 4.0, 3.0, 2.0, 6.0, 7.0], [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    channels = torch.stack([7 - spread, 4 * spread - 7], dim=2)  # the first varies the other way
    views = iter((0.0, 1.0, -1.0))

    def encode_patches(_):
        return None, 10 + next(views) * channels

    monkeypatch.setattr(built.backbone, "encode_patches", encode_patches)
    mask = built.choose_mask(IMAGES[:2])
    assert mask.nonzero().tolist() == [[0, 6], [0, 7], [1, 0], [1, 1]]


def test_uncertainty_comes_from_as_many_different_views_as_set():
    built, seen = method(num_views=4), []
    built.backbone.vit.patch_embed.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    built.choose_mask(IMAGES)
    assert len(seen) == 4
    assert not any(torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_reconstruction_is_the_mean_squared_error_over_hidden_patches():
    built = method()
    torch.nn.init.zeros_(built.reconstruct.weight)
    mask = torch.arange(16).expand(8, -1) < 8
    patches = torch.zeros(8, 16, 32)
    # A 4-pixel patch of noise has three cells, one a channel, of length one: 3 / 27 against zeros.
    assert built.reconstruction_loss(patches, IMAGES, mask).item() == pytest.approx(1 / 9)
    built.reconstruct.bias.data[0] = 2.0
    flat = torch.full_like(IMAGES, 0.7)
    flat[..., 12:, :] = IMAGES[..., 12:, :]  # below the hidden half: unseen
    assert built.reconstruction_loss(patches, flat, mask).item() == pytest.approx(4 / 27)


@pytest.mark.parametrize(
    ("consistency", "expected"), [("symmetric", symmetric_cross_entropy), ("one_sided", soft_cross_entropy)]
)
def test_the_loss_compares_masked_with_whole_images(monkeypatch, consistency, expected):
    built = method(consistency=consistency, reconstruction_weight=3.0)
    mask = torch.arange(16).expand(8, -1) % 2 == 0
    monkeypatch.setattr(built, "choose_mask", lambda _: mask)
    losses = []
    monkeypatch.setattr(built, "update", losses.append)
    with torch.no_grad():
        features, _ = built.backbone.encode_patches(built.backbone.embed_masked(IMAGES, mask, torch.zeros(32)))
        masked, whole = built.backbone.classify(features), built.backbone(IMAGES)

    built.forward_and_adapt(IMAGES)

    told = built.diagnostics()
    assert told["consistency"] == pytest.approx(expected(masked, whole).mean().item(), rel=1e-5)
    assert losses[0].item() == pytest.approx(told["consistency"] + 3 * told["reconstruction"], rel=1e-5)


def test_prediction_is_that_of_the_network_for_whole_images_before_the_update():
    built = method(lr=0.01)
    for images in batches(2):
        with torch.no_grad():
            expected = built.backbone(images)
        assert torch.equal(built.forward_and_adapt(images), expected)


@pytest.mark.parametrize("restore", [0.0, 1.0])
def test_restoring_brings_the_network_back_but_not_what_was_added(restore):
    built = method(lr=0.01, restore_probability=restore)
    added = [built.mask_token, *built.reconstruct.parameters()]
    before = [p.detach().clone() for p in added]
    built.forward_and_adapt(IMAGES)
    back = [torch.equal(p, p0) for p, p0 in zip(built.adapted, built.initial_values(built.adapted), strict=True)]
    assert all(back) if restore else not any(back)
    assert not any(torch.equal(p, p0) for p, p0 in zip(added, before, strict=True))


def test_a_part_of_the_weights_is_restored():
    built = method(lr=0.01, restore_probability=0.25)
    built.forward_and_adapt(IMAGES)
    back = [p == p0 for p, p0 in zip(built.adapted, built.initial_values(built.adapted), strict=True)]
    assert torch.cat([b.flatten() for b in back]).float().mean().item() == pytest.approx(0.25, abs=0.01)


def test_adam_steps_the_network_and_what_was_added_by_their_own_rates():
    built = method(lr=1e-3, lr_reconstruction=1e-2, restore_probability=0.0)
    built.forward_and_adapt(IMAGES)
    assert built.mask_token.abs().max().item() == pytest.approx(1e-2, rel=1e-3)  # Adam's first step: the rate
    moved = (built.backbone.vit.head.weight - built.initial_values([built.backbone.vit.head.weight])[0]).abs().max()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


def test_steps_lower_the_loss(monkeypatch):
    built = method(lr=1e-4, lr_reconstruction=1e-3, restore_probability=0.0)
    mask = built.choose_mask(IMAGES)
    monkeypatch.setattr(built, "choose_mask", lambda _: mask)
    losses = []
    for _ in range(4):
        built.forward_and_adapt(IMAGES)
        losses.append(built.diagnostics()["consistency"] + 0.5 * built.diagnostics()["reconstruction"])
    assert losses == sorted(losses, reverse=True)


def test_a_convolutional_stem_has_patches_too():
    built = CMAE(load_model("shapes_vit"), num_views=2)
    built.configure_model()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert built.forward_and_adapt(images).shape == (2, 10)
    assert built.extra_parameters() == 128 + 108 * 128 + 108


def test_a_network_without_patches_is_refused():
    with pytest.raises(ValueError, match="needs a vision transformer"):
        CMAE(toy_cnn()).configure_model()
