"""The configurations of DPCore behind the paper's ablations, in numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers.plane import element, images_with, method
from tta_bench.functional import batch_statistics, softmax_entropy
from tta_bench.methods import DPCore, DPCoreB
from tta_bench.testing import batches, check_method, ready, toy_backbone, toy_cnn

ALWAYS_KNOWN = 1e9


def stream(built, count=4, size=8):
    return [built.forward_and_adapt(x).detach() for x in batches(count, batch_size=size)]


def tiny(**settings):
    return ready(lambda: DPCore(toy_backbone(), **{"steps_new": 3, "num_source": 32, **settings}))


class TestAFullCoreset:
    def overfull(self, overflow):
        """Elements at 0, 10, 11 and a new one at 30; 10 and 11 are the nearest two."""
        built = method(max_size=3, overflow=overflow, rho=0.0)
        for mean, prompt in ((0.0, 1.0), (10.0, 2.0), (11.0, 4.0)):
            element(built, mean, 1.0, prompt)
        built.forward_and_adapt(images_with(30.0))
        return built

    def test_merging_averages_the_nearest_two(self):
        built = self.overfull("merge")
        assert built.coreset.mean[:, 0].tolist() == [0.0, 10.5, 30.0]
        assert built.coreset.prompt[:2, 0, 0].tolist() == [1.0, 3.0]

    def test_discarding_drops_the_oldest(self):
        built = self.overfull("discard")
        assert built.coreset.mean[:, 0].tolist() == [10.0, 11.0, 30.0]
        assert built.coreset.prompt[:2, 0, 0].tolist() == [2.0, 4.0]

    @pytest.mark.parametrize("overflow", ["merge", "discard"])
    def test_it_never_exceeds_its_size(self, overflow):
        built = tiny(max_size=2, overflow=overflow, rho=0.0)
        stream(built, count=5)
        assert len(built.coreset) == len(built.coreset.std) == len(built.coreset.prompt) == 2


def test_exp1_learns_one_prompt_and_refines_it():
    built = tiny(rho=ALWAYS_KNOWN)
    stream(built)
    assert len(built.coreset) == 1
    assert built.passes() == (2, 1)


def test_exp2_learns_one_prompt_per_batch():
    built = tiny(rho=0.0)
    stream(built)
    assert len(built.coreset) == 4
    assert built.passes() == (2 + 3, 3)


SPACES = ({}, {"prompt_space": "norms"})


class TestNormSpace:
    @pytest.mark.parametrize("norm", ["batch", "group"])
    def test_it_runs_on_a_network_without_tokens(self, norm):
        built = ready(lambda: DPCore(toy_cnn(norm), prompt_space="norms", steps_new=3, num_source=32))
        scores = torch.cat(stream(built))
        assert torch.isfinite(scores).all()
        assert built.coreset.prompt.shape == (len(built.coreset), built.trainable_parameters())

    def test_a_network_without_tokens_uses_it_by_itself_and_this_is_said(self):
        own, named = (ready(lambda s=s: DPCore(toy_cnn("group"), steps_new=3, num_source=32, **s)) for s in SPACES)
        for mine, theirs in zip(stream(own), stream(named), strict=True):
            assert torch.equal(mine, theirs)
        assert "learns the affine parameters of its norm layers instead" in own.notices()[0]
        assert named.notices() == tiny().notices() == ()

    def test_it_keeps_the_contract(self):
        check_method(DPCore, prompt_space="norms", steps_new=3, num_source=32)

    def test_a_new_prompt_starts_from_the_source_and_comes_nearer_to_it(self):
        built = tiny(prompt_space="norms", rho=0.0, steps_new=20)
        source = built.space.value()
        assert torch.equal(built.initial_prompt, source)
        stream(built, count=1)
        distances = built.diagnostics()
        images = batches(1)[0]
        with torch.no_grad():
            embedded = built.space.embed(built.backbone, images)
            raw = built.space.raw(built.backbone, embedded)
        assert torch.equal(built.space.value(), source)  # the raw pass runs the source model
        assert float(built.source.distance(batch_statistics(raw))) == pytest.approx(distances["distance_raw"], rel=1e-5)
        built.space.load(built.coreset.prompt[0])
        with torch.no_grad():
            learned = built.space.prompted(built.backbone, embedded)
        assert float(built.source.distance(batch_statistics(learned))) < distances["distance_raw"]


class TestFloorGuard:
    def test_a_batch_like_the_source_is_left_alone(self):
        built = method(floor_guard=1e6)
        scores = built.forward_and_adapt(images_with(5.0))
        assert (built.passes(), len(built.coreset)) == ((1, 0), 0)
        assert torch.equal(scores, built.backbone(images_with(5.0)))

    def test_a_far_batch_is_learned(self):
        built = method(floor_guard=1.0)
        built.forward_and_adapt(images_with(100.0))
        assert len(built.coreset) == 1


def test_confident_source_images_are_those_of_low_entropy():
    built = DPCore(toy_backbone(), num_source=5, source_filter="confident")
    images = torch.cat(batches(3, batch_size=16))
    built.fit_source(images.split(16))
    with torch.no_grad():
        sure = softmax_entropy(built.backbone(images)) < 0.4 * math.log(4)
        expected = batch_statistics(built.backbone.features(images[sure][:5]))
    assert 5 < sure.sum() < 48
    torch.testing.assert_close((built.source.mean, built.source.std), tuple(expected))


class TestDPCoreB:
    def build(self, size):
        return ready(lambda: DPCoreB(toy_backbone(), buffer_size=size, steps_new=3, num_source=32))

    def test_single_images_fill_the_buffer_and_learn_as_the_batch_would(self):
        images = batches(1, batch_size=8)[0]
        buffered, whole = self.build(8), tiny()
        for image in images:
            buffered.forward_and_adapt(image[None])
        whole.forward_and_adapt(images)
        torch.testing.assert_close(buffered.coreset.mean, whole.coreset.mean)
        torch.testing.assert_close(buffered.coreset.prompt, whole.coreset.prompt)
        assert len(buffered.buffer) == 0
        assert buffered.passes() == (1 + (1 + 3) * 8, 3 * 8)  # paid by the image that filled the buffer

    def test_images_are_predicted_by_the_source_model_until_the_buffer_was_full(self):
        built, images = self.build(8), batches(2, batch_size=8)
        with torch.no_grad():
            source = toy_backbone()(images[0])
        before = torch.cat([built.forward_and_adapt(image[None]) for image in images[0]])
        torch.testing.assert_close(before, source)
        after = built.forward_and_adapt(images[1][:1])
        with torch.no_grad():
            prompted = built.backbone.classify(built.backbone.features(images[1][:1], built.coreset.prompt[0]))
        torch.testing.assert_close(after, prompted)

    def test_a_buffer_of_one_is_refused(self):
        with pytest.raises(ValueError, match="buffer_size must be 2 or more"):
            DPCoreB(toy_backbone(), buffer_size=1)


@pytest.mark.parametrize("setting", [{"max_size": 0}, {"floor_guard": -1.0}])
def test_impossible_values_are_refused(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=f"method.{name} must be"):
        DPCore(toy_backbone(), **setting)
