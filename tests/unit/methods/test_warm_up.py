"""The labeled source phase, alone and through the methods that have one."""

from __future__ import annotations

import io
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.methods import FAST
from tta_bench import testing
from tta_bench.methods import METHODS, Source
from tta_bench.methods.warm_up import warm_up
from tta_bench.types import SourceNeed

NAMES = ("dept", "ecotta", "vdp", "vida")
# Other values of all that the stream alone depends on.
STREAM = {
    "dept": {
        "lr": 0.1, "clip": 9.0, "neighbors": 1, "memory_size": 2, "diversity_weight": 2.0, "spread_weight": 3.0,
    },
    "ecotta": {"lr": 0.1, "regularization": 3.0, "entropy_margin": 0.1, "mode": "single"},
    "vdp": {
        "lr_specific": 0.1, "lr_agnostic": 0.1, "teacher_momentum": 0.5, "penalty": 3.0, "damping": 1.0, "jump": 0.5,
    },
    "vida": {
        "lr": 0.1, "adapter_lr": 0.1, "optimizer": "adam", "loss": "cross_entropy", "num_views": 3, "views": "flip",
        "threshold": 9.0, "scales": "released", "teacher_momentum": 0.5, "adapter_momentum": 0.5,
        "restore_probability": 0.5,
    },
}  # fmt: skip


def build(name, **settings):
    return METHODS[name](testing.toy_backbone(), **{**FAST[name], **settings})


def source(batch_size=16):
    return testing.toy_data().source_dataloader(SourceNeed.LABELED, batch_size)


class Two(Source):
    """A method with two trainable scalars."""

    def configure_adaptation(self):
        super().configure_adaptation()
        self.a, self.b = (torch.nn.Parameter(torch.ones(())) for _ in range(2))


def two():
    method = Two(testing.toy_backbone())
    method.configure_model()
    return method, torch.optim.SGD([method.a], lr=0.5)


def loader(count):
    return [(torch.full((2, 3, 4, 4), float(i)), torch.tensor([i, i])) for i in range(count)]


def test_it_steps_as_often_as_asked_and_begins_the_loader_again():
    method, optimizer = two()
    seen = []

    def loss(images, labels):
        assert images.mean() == labels[0]
        assert not method.b.requires_grad
        seen.append(int(labels[0]))
        return 0.25 * method.a + method.b

    warm_up(method, loader(2), optimizer, loss, 5)
    assert seen == [0, 1, 0, 1, 0]
    assert method.a.item() == 1 - 5 * 0.5 * 0.25
    assert (method.b.item(), method.b.requires_grad, method.a.grad) == (1.0, True, None)


def test_without_steps_nothing_happens():
    method, optimizer = two()
    warm_up(method, iter([]), optimizer, lambda *_: pytest.fail("the loss was asked for"), 0)
    assert method.a.item() == 1.0


def test_no_source_images_are_refused():
    method, optimizer = two()
    with pytest.raises(ValueError, match="no source images"):
        warm_up(method, [], optimizer, lambda *_: method.a, 1)


@pytest.mark.parametrize("name", NAMES)
def test_reset_returns_to_the_end_of_the_warm_up(name):
    method = build(name)
    method.configure_model()
    drawn = {key: value.clone() for key, value in method.state_dict().items()}
    method.fit_source(source())
    warm = {key: value.clone() for key, value in method.state_dict().items()}
    assert any(not torch.equal(drawn[key], warm[key]) for key in drawn)
    for images in testing.batches(2):
        method.forward_and_adapt(images)
    method.reset()
    for key, value in method.state_dict().items():
        assert torch.equal(value, warm[key]), key


@pytest.mark.parametrize("name", ["dept", "vida"])
def test_the_teacher_starts_as_the_student_that_was_trained(name):
    method = testing.ready(lambda: build(name))
    student = method.backbone.state_dict()
    for key, value in method.teacher.state_dict().items():
        assert torch.equal(value, student[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_a_cached_warm_up_is_as_good_as_a_new_one(name):
    fitted, file = testing.ready(lambda: build(name)), io.BytesIO()
    torch.save(fitted.source_state(), file)
    file.seek(0)
    loaded = build(name)
    loaded.configure_model()
    loaded.load_source_state(torch.load(file, weights_only=True))
    for _ in range(2):
        for images in testing.batches(3):
            assert torch.equal(loaded.forward_and_adapt(images), fitted.forward_and_adapt(images))
        loaded.reset()
        fitted.reset()


@pytest.mark.parametrize("name", NAMES)
def test_only_what_was_trained_is_cached(name):
    frozen = testing.toy_backbone().state_dict()
    allowed = {"dept": {"vit.head.weight", "vit.head.bias"}}.get(name, set())
    cached = testing.ready(lambda: build(name)).source_state()
    assert cached
    assert {key.partition(".")[2] for key in cached} & set(frozen) <= allowed


@pytest.mark.parametrize("name", NAMES)
def test_the_source_settings_are_all_that_the_warm_up_depends_on(name):
    a, b = (testing.ready(lambda settings=settings: build(name, **settings)) for settings in ({}, STREAM[name]))
    assert set(a.hparams) == set(a.source_settings) | set(STREAM[name])
    first, second = a.source_state(), b.source_state()
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_a_trainer_warms_up_what_nobody_fitted(name):
    scores = testing.run_stream(build(name), testing.toy_data())
    fitted = build(name)
    fitted.configure_model()
    fitted.fit_source(source(batch_size=64))
    assert torch.equal(scores, testing.run_stream(fitted, testing.toy_data()))


def clean_images(count=64):
    pixels, labels = next(iter(source(batch_size=count)))
    images = pixels / 255
    return images, labels


@pytest.mark.parametrize(("name", "lr"), [("dept", 0.01), ("ecotta", 0.003), ("vida", 0.01)])
def test_the_warm_up_teaches_an_ignorant_network(name, lr):
    images, labels = clean_images()
    losses = []
    for steps in (0, 40):
        method = build(name, warmup_steps=steps, warmup_lr=lr)
        method.configure_model()
        method.fit_source(source())
        losses.append(F.cross_entropy(method.forward_and_adapt(images), labels).item())
    assert losses[1] < 0.8 * losses[0]


@pytest.fixture(scope="module")
def able_network():
    """A network that knows the source."""
    images, labels = clean_images()
    network = testing.toy_backbone().requires_grad_(True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    assert (network(images).argmax(dim=1) == labels).all()
    return network


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dept", {"warmup_steps": 60, "warmup_lr": 0.02}),
        ("ecotta", {"warmup_steps": 20, "warmup_lr": 0.001}),
        ("vida", {"warmup_steps": 20, "warmup_lr": 0.0001}),
    ],
)
def test_the_warm_up_keeps_what_a_network_knows(name, settings, able_network):
    method = METHODS[name](deepcopy(able_network), **{**FAST[name], **settings})
    method.configure_model()
    method.fit_source(source())
    images, labels = clean_images()
    assert (method.forward_and_adapt(images).argmax(dim=1) == labels).float().mean() > 0.98


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(ValueError, match=r"method\.warmup_steps must be 0 or more, got -1"):
        build("vida", warmup_steps=-1).fit_source(source())
