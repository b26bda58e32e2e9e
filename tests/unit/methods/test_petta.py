"""PeTTA: divergence sensing and its effects, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tta_bench.functional import soft_cross_entropy
from tta_bench.methods import PeTTA
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn


def method(backbone=toy_backbone, **settings):
    return ready(lambda: PeTTA(backbone(), **{"views": "flip", "num_source": 32, **settings}))


def one_dimensional(source_mean, source_variance, class_mean, **settings):
    """A method of 4 classes whose features are taken to have one dimension."""
    built = method(**settings)
    for name, values in {
        "source_mean": source_mean,
        "source_variance": source_variance,
        "class_mean": class_mean,
    }.items():
        setattr(built, name, torch.tensor(values, dtype=torch.float64)[:, None] - 1e-6 * (name == "source_variance"))
    return built


def test_divergence_is_the_mean_over_the_predicted_classes():
    built = one_dimensional([0.0, 0.0, 0.0, 0.0], [1.0, 4.0, 1.0, 1.0], [1.0, 4.0, 100.0, 100.0])
    divergence = built.sense(torch.zeros(3, 1).double(), torch.tensor([0, 1, 1]))
    assert float(divergence) == pytest.approx(1 - math.exp(-(1.0 + 16.0 / 4.0) / 2))


def test_class_means_follow_after_they_were_sensed_and_only_where_there_are_images():
    built = one_dimensional([0.0] * 4, [1.0] * 4, [0.0, 0.0, 8.0, 8.0])
    features = torch.tensor([[2.0], [4.0], [6.0]]).double()
    assert float(built.sense(features, torch.tensor([0, 1, 1]))) == 0.0
    torch.testing.assert_close(built.class_mean[:, 0], torch.tensor([0.1, 0.25, 8.0, 8.0]).double())


def test_where_nothing_has_diverged_the_teacher_takes_its_full_share():
    built = method(alpha0=0.25, lr=0.05)
    source = built.initial_values(built.adapted)
    built.forward_and_adapt(batches(1)[0])
    assert built.diagnostics() == {"divergence": 0.0, "teacher_share": 0.25, "memory_size": 8.0}
    teacher = dict(built.teacher.named_parameters())
    names = {id(p): name for name, p in built.backbone.named_parameters()}
    for student, start in zip(built.adapted, source, strict=True):
        torch.testing.assert_close(teacher[names[id(student)]], 0.75 * start + 0.25 * student.detach())


def test_divergence_weighs_the_regulariser_and_holds_the_teacher_back():
    built = method(alpha0=0.25, lambda0=3.0)
    built.class_mean = built.source_mean + built.source_variance.add(1e-6).sqrt()  # a distance of 1 in every class
    losses = {}
    for lambda0 in (0.0, 3.0):
        built.hparams.lambda0 = lambda0
        built.memory.images = batches(1)[0]
        losses[lambda0] = built.loss(torch.tensor(1 - math.exp(-1.0))).item()
    assert losses[3.0] - losses[0.0] == pytest.approx((1 - math.exp(-1)) * 3 * built.regulariser().item(), rel=1e-4)
    built.forward_and_adapt(batches(1)[0])
    assert built.diagnostics()["teacher_share"] == pytest.approx(0.25 * math.exp(-1), rel=1e-5)


def test_regulariser_is_minus_the_mean_cosine_with_the_source():
    built = method()
    start = built.initial_values(built.adapted)
    assert built.regulariser().item() == pytest.approx(-0.5)  # weights are ones, biases zeros without a direction
    with torch.no_grad():
        for p, value in zip(built.adapted, start, strict=True):
            p.copy_(torch.where(torch.arange(len(p)) % 4 == 0, -2 * value, 2 * value))
    assert built.regulariser().item() == pytest.approx(-0.25)  # a quarter of the signs has turned


def test_loss_is_that_of_the_teacher_and_of_the_source_model():
    built = method(anchor_weight=2.0)
    images = built.memory.images = batches(1)[0]
    with torch.no_grad():
        built.teacher.vit.norm.bias += 0.1
        view = built.backbone(images.flip(-1))
        to_teacher = soft_cross_entropy(view, built.teacher(images)).mean()
        to_source = soft_cross_entropy(view, toy_backbone()(images)).mean()
    torch.testing.assert_close(built.loss(torch.tensor(0.0)).detach(), to_teacher + 2 * to_source)


@pytest.mark.parametrize("loss", ["cross_entropy", "symmetric"])
def test_a_small_step_lowers_the_loss(loss):
    built, divergence = method(loss=loss, lr=1e-4), torch.tensor(0.3)
    built.memory.images = batches(1)[0]
    before = built.loss(divergence)
    built.update(before)
    assert built.loss(divergence).item() < before.item()


def test_source_statistics_are_those_of_the_predicted_classes():
    built, source = method(), toy_backbone()
    images = torch.cat(batches(4))
    with torch.no_grad():
        features = source.features(images)
        labels = source.classify(features).argmax(dim=1)
    built.fit_source(list(images.split(8)))
    common = int(labels.mode().values)
    own = features[labels == common]
    torch.testing.assert_close(built.source_mean[common], own.mean(dim=0))
    torch.testing.assert_close(built.source_variance[common], own.var(dim=0))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_networks_adapt_too(norm):
    built, images = method(lambda: toy_cnn(norm), lr=0.01), batches(3)
    torch.testing.assert_close(built.forward_and_adapt(images[0]), toy_cnn(norm)(images[0]).detach())
    for following in images[1:]:
        assert torch.isfinite(built.forward_and_adapt(following)).all()
    assert not torch.equal(built.teacher.network.bn1.weight, built.backbone.network.bn1.weight)
