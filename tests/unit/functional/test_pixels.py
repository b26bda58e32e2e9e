"""Functions that treat images and pixels alike: means, a loss, and views whose pixels can be compared."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import augment
from tta_bench.functional.augment import random_view
from tta_bench.functional.pixels import labeled_cross_entropy, per_class, per_image
from tta_bench.functional.training_views import training_pair

COUNT, HEIGHT, WIDTH = 32, 10, 20


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_means_of_images_and_classes_are_those_of_their_pixels():
    scores = torch.randn(2, 3, 4, 5, generator=rng(), dtype=torch.double)
    flat = scores.permute(0, 2, 3, 1).reshape(-1, 3)
    torch.testing.assert_close(per_class(scores), per_class(flat))
    torch.testing.assert_close(per_class(flat), flat.mean(dim=0))
    torch.testing.assert_close(per_image(scores[:, 0])[1], scores[1, 0].mean())
    assert torch.equal(per_image(flat[:, 0]), flat[:, 0])


class TestTheLossWithLabels:
    def test_pixels_labeled_255_do_not_count(self):
        logits = torch.zeros(1, 2, 1, 3)
        logits[0, 0, 0, 1] = math.log(3)
        logits[0, :, 0, 2] = torch.tensor([9.0, 0.0])
        loss = labeled_cross_entropy(logits, torch.tensor([[[0, 1, 255]]]))
        assert loss.item() == pytest.approx((math.log(2) + math.log(4)) / 2)

    def test_the_class_255_of_an_image_counts(self):
        loss = labeled_cross_entropy(torch.zeros(2, 256), torch.tensor([255, 0]))
        assert loss.item() == pytest.approx(math.log(256))

    def test_without_a_pixel_that_counts_it_is_zero(self):
        logits = torch.zeros(1, 2, 1, 3, requires_grad=True)
        loss = labeled_cross_entropy(logits, torch.full((1, 1, 3), 255), label_smoothing=0.1)
        loss.backward()
        assert loss.item() == 0
        assert not logits.grad.any()


class TestLabelMapsOfTrainingViews:
    def test_go_where_their_pixels_go(self):
        y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
        ramps = torch.stack([x, y, x * 0]).double().expand(COUNT, 3, -1, -1) / WIDTH
        columns = x.expand(COUNT, -1, -1)
        view, labels = training_pair(ramps, columns, rng(), crop=0.4)
        assert labels.dtype == torch.long
        assert len({tuple(row[0].tolist()) for row in labels}) > COUNT / 2
        assert ((view[:, 0] * WIDTH - labels).abs() <= 0.5 + 1e-6).all()  # the nearest column of what was interpolated
        mirrored = labels[:, 0, 0] > labels[:, 0, -1]
        assert COUNT / 4 < mirrored.sum() < COUNT * 3 / 4

    def test_keep_the_ignored_label(self):
        _, labels = training_pair(torch.rand(4, 3, 8, 8), torch.full((4, 8, 8), 255), rng(), crop=0.3)
        assert (labels == 255).all()

    def test_labels_of_whole_images_stay(self):
        given = torch.arange(COUNT)
        assert training_pair(torch.rand(COUNT, 3, 8, 8), given, rng(), crop=0.3)[1] is given

    def test_images_are_the_same_with_and_without(self):
        images = torch.rand(4, 3, 8, 8, generator=rng(1))
        pair = [training_pair(images, y, rng(), crop=0.3, jitter=0.5, blur=0.5) for y in (given(), given((8, 8)))]
        assert torch.equal(pair[0][0], pair[1][0])


def given(size=()):
    return torch.zeros(4, *size, dtype=torch.long)


class TestViewsInPlace:
    @pytest.mark.parametrize("seed", range(6))
    def test_move_nothing(self, seed):
        still = augment.Ranges()._replace(
            brightness=(1, 1), contrast=(1, 1), saturation=(1, 1), hue=(0, 0), gamma=(1, 1)
        )
        images = torch.rand(2, 3, HEIGHT, WIDTH, generator=rng(3), dtype=torch.double)
        view = augment.transformed_view(images, rng(seed), still, "edge", False, in_place=True)
        torch.testing.assert_close(view, images, rtol=0, atol=2e-6)  # torchvision's hues are float32 inside

    def test_change_colours_as_others_do(self):
        images = torch.rand(2, 3, HEIGHT, WIDTH, generator=rng(3))
        for kind in ("cotta", "soft", "roid"):
            view = random_view(images, kind, rng(), in_place=True)
            assert (view - images).abs().mean() > 0.02, kind
            assert torch.corrcoef(torch.stack([view.flatten(), images.flatten()]))[0, 1] > 0.8, kind

    def test_are_not_mirrored(self):
        images = torch.rand(2, 3, HEIGHT, WIDTH)
        assert torch.equal(random_view(images, "flip", rng(), in_place=True), images)
