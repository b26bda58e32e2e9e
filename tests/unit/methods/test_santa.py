"""SANTA's formulas, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import softmax_entropy
from tta_bench.methods import SANTA
from tta_bench.methods.santa import contrastive_loss
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn, toy_data
from tta_bench.types import SourceNeed


def method(backbone=toy_backbone, **settings):
    return ready(lambda: SANTA(backbone(), **{"views": "flip", "num_source": 32, **settings}))


def first_loss(built, images):
    losses, update = [], built.update
    built.update = lambda loss: (losses.append(loss.item()), update(loss))
    built.forward_and_adapt(images)
    return losses[0]


def test_contrast_of_two_separate_images():
    axes = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)  # all of image 1 on one axis, all of image 2 on the other
    for scale in (1.0, 5.0):
        # A row sees its 2 partners at similarity 1 and 3 strangers at 0.
        assert float(contrastive_loss(scale * axes, 0.5)) == pytest.approx(math.log(2 + 3 * math.exp(-2)))


def test_contrast_of_one_image_has_nothing_to_confuse_it_with():
    embeddings = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    # Rows 1 and 2 see each other at 1 / tau and row 3 at 0; row 3 sees both at 0.
    pair = math.log(math.exp(2) + 1)
    expected = (2 * ((pair - 2) + pair) / 2 + math.log(2)) / 3
    assert float(contrastive_loss(embeddings, 0.5)) == pytest.approx(expected)


def test_contrast_equals_the_sum_written_out():
    embeddings = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = [(view / view.norm(), image) for block in embeddings for image, view in enumerate(block)]
    terms = []
    for i, (a, image) in enumerate(z):
        others = [(float(a @ b) / 0.1, other == image) for j, (b, other) in enumerate(z) if j != i]
        total = math.log(sum(math.exp(s) for s, _ in others))
        terms += [total - s for s, partner in others if partner]
    assert len(terms) == 24
    assert float(contrastive_loss(embeddings, 0.1)) == pytest.approx(sum(terms) / 24)


def test_prototypes_are_the_mean_features_of_the_labeled_classes():
    built, source = method(num_source=1000), toy_backbone()
    pairs = list(toy_data().source_dataloader(SourceNeed.LABELED, batch_size=16))
    images, labels = (torch.cat(part) for part in zip(*pairs, strict=True))
    with torch.no_grad():
        features = source.features(images / 255)
    for k in range(4):
        torch.testing.assert_close(built.prototypes[k], features[labels == k].mean(dim=0))


def test_the_nearest_prototype_has_the_largest_cosine_whatever_its_length():
    built = method()
    built.prototypes = torch.zeros(4, 32)
    built.prototypes[0, 0], built.prototypes[1, :2], built.prototypes[2:, 2] = 100.0, 0.1, 1.0
    features = torch.zeros(2, 32)
    features[0, :2] = torch.tensor([0.5, 0.4])
    features[1, 0], features[1, 1] = 1.0, 0.1
    assert torch.equal(built.nearest(features), built.prototypes[[1, 0]])


def test_at_the_start_the_loss_towards_the_source_is_the_entropy():
    built, images = method(views="identity", contrast_weight=0.0), batches(1)[0]
    with torch.no_grad():
        entropy = float(softmax_entropy(toy_backbone()(images)).mean())
    assert first_loss(built, images) == pytest.approx(entropy, rel=1e-5)


def test_the_loss_towards_the_source_averages_over_image_and_view():
    built, images = method(contrast_weight=0.0, anchor_weight=3.0), batches(1)[0]
    with torch.no_grad():
        built.backbone.vit.norm.bias += 0.1
        log_source = toy_backbone()(images).log_softmax(dim=1)
        image, view = built.backbone(images).softmax(dim=1), built.backbone(images.flip(-1)).softmax(dim=1)
        expected = -3 * ((image + view) / 2 * log_source).sum(dim=1).mean()
    assert first_loss(built, images) == pytest.approx(float(expected), rel=1e-5)


def test_the_contrast_joins_prototype_image_and_view_behind_the_projector():
    built, images = method(anchor_weight=0.0, contrast_weight=2.0), batches(1)[0]
    with torch.no_grad():
        features, view = built.backbone.features(images), built.backbone.features(images.flip(-1))
        triples = torch.stack([built.nearest(features), features, view])
        expected = 2 * contrastive_loss(built.projector(triples), 0.1)
    assert first_loss(built, images) == pytest.approx(float(expected), rel=1e-5)


def test_a_small_step_lowers_the_loss():
    built, images = method(lr=1e-4), batches(1)[0]
    assert first_loss(built, images) > first_loss(built, images)


def test_predictions_are_those_before_the_update():
    built, images = method(), batches(1)[0]
    torch.testing.assert_close(built.forward_and_adapt(images), toy_backbone()(images))
    assert not torch.allclose(built.forward_and_adapt(images), toy_backbone()(images))


def test_the_projector_is_small_and_drawn_from_the_seed():
    built, other = method(), method(seed=1)
    torch.manual_seed(5)
    again = method()
    assert torch.equal(built.projector[0].weight, again.projector[0].weight)
    assert not torch.equal(built.projector[0].weight, other.projector[0].weight)
    assert built.projector[0].weight.abs().max().item() <= 32**-0.5
    assert built.projector[0].weight.std().item() == pytest.approx((32 * 3) ** -0.5, rel=0.05)
    assert built.extra_parameters() == (32 + 1) * 128 + (128 + 1) * 128


def test_a_class_without_source_images_is_refused():
    built = SANTA(toy_backbone())
    with pytest.raises(ValueError, match="none of class 2: raise num_source"):
        built.fit_source([(batches(1)[0], torch.tensor([0, 1, 3, 0, 1, 3, 0, 1]))])


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_networks_adapt_too(norm):
    built = method(lambda: toy_cnn(norm))
    for images in batches(3):
        assert torch.isfinite(built.forward_and_adapt(images)).all()
