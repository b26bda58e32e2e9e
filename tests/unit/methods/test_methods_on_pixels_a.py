"""Methods on a segmentation network, part 1: their treatment of pixels, in numbers checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.helpers.segmenting import needs_mmseg
from tta_bench.datasets.segmentation.streets_c import streets_c
from tta_bench.functional import (
    adapt_norm_layers,
    adapt_weights_and_biases,
    batch_statistics,
    hard_cross_entropy,
    map_statistics,
    norm_layers,
    soft_cross_entropy,
    softmax_entropy,
    symmetric_cross_entropy,
)
from tta_bench.functional.parameters import batch_norms
from tta_bench.functional.segmentation import selected_images, view_probabilities
from tta_bench.methods import METHODS, CoTTA, DPCore
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.loading.segformer import load_segformer
from tta_bench.testing import checks, toy_segformer

K = 3


class Pixels(Backbone):
    """The scores of a pixel are its channels, scaled and moved by an early norm, and moved by its column."""

    segments = True
    num_classes = feature_dim = K

    def __init__(self, ramp=None):
        super().__init__((0.0,), (1.0,))
        self.stages = nn.ModuleList([nn.BatchNorm2d(K, eps=0.0), nn.BatchNorm2d(K, eps=0.0)])
        self.ramp = ramp
        self.double().eval()

    def prepare(self, images):
        return images  # scores, not pixels

    def _embed(self, images):
        return images

    def _encode(self, tokens, prompt):
        return self.stages[1](self.stages[0](tokens))

    def classify(self, features):
        return features if self.ramp is None else features + self.ramp


def adapting(name, network=None, **settings):
    built = METHODS[name](network or Pixels(), **settings)
    built.double().configure_model()
    return built


def image(*pixels):
    """One image (1, K, 1, W) with the given scores, column by column."""
    return torch.tensor(pixels, dtype=torch.double).T[None, :, None, :]


SURE, SURE_TOO, UNSURE = (4.0, 0.0, 0.0), (0.0, 3.0, 0.0), (0.2, 0.0, 0.1)
MARGIN = 0.4 * math.log(K)


def entropy_of(rows, weight, bias):
    return softmax_entropy(torch.tensor(rows).double() * weight + bias)


def leaves():
    return torch.ones(K).double().requires_grad_(), torch.zeros(K).double().requires_grad_()


class TestFunctionsOfPixels:
    logits, target = torch.randn(2, 2, K, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.double)

    @pytest.mark.parametrize("loss", [soft_cross_entropy, hard_cross_entropy, symmetric_cross_entropy])
    def test_losses_are_those_of_each_pixel(self, loss):
        rows = [x.permute(0, 2, 3, 1).reshape(-1, K) for x in (self.logits, self.target)]
        torch.testing.assert_close(loss(self.logits, self.target), loss(*rows).view(2, 4, 5))
        torch.testing.assert_close(softmax_entropy(self.logits), softmax_entropy(rows[0]).view(2, 4, 5))

    def test_hard_labels_are_the_largest_scores(self):
        loss = hard_cross_entropy(torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.1]]))
        assert loss.item() == pytest.approx(math.log(4))

    def test_an_image_is_selected_with_any_of_its_pixels(self):
        mask = torch.tensor([[[True, False]], [[False, False]], [[True, True]]])
        assert selected_images(mask) == selected_images(mask[:, 0, 0]) == 2

    def test_statistics_of_maps_are_means_over_images_of_those_over_positions(self):
        maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 5.0], [5.0, 9.0]]]])
        of_images = map_statistics(maps)
        assert of_images.mean.flatten().tolist() == [2.5, 6.0]
        torch.testing.assert_close(of_images.std.flatten(), torch.tensor([math.sqrt(5 / 3), 2.0]))
        together = batch_statistics(maps)
        assert together.mean.tolist() == [4.25]
        assert together.std.item() == pytest.approx((math.sqrt(5 / 3) + 2) / 2)

    def test_statistics_of_one_position_are_refused(self):
        with pytest.raises(ValueError, match="at least 2 positions of a map, got 1"):
            batch_statistics(torch.ones(4, 3, 1, 1))

    def test_views_come_scale_by_scale_and_mirrored_second(self):
        seen, images = [], torch.rand(1, K, 4, 6)

        def network(view):
            seen.append((tuple(view.shape[2:]), bool(torch.equal(view[..., :1], images[..., -1:]))))
            return view

        first, second, _, _ = view_probabilities(network, images, (1.0, 0.5))
        assert seen == [((4, 6), False), ((4, 6), True), ((2, 3), False), ((2, 3), False)]
        torch.testing.assert_close(first, images.softmax(dim=1))
        torch.testing.assert_close(second, first)  # mirrored back


@needs_mmseg
class TestWhatIsAdapted:
    def test_early_norm_layers_are_those_before_the_last_stage(self):
        network = toy_segformer()
        names = {id(m): name for name, m in network.named_modules()}
        every, early = ({names[id(m)] for m in norm_layers(network, part)} for part in ("all", "early"))
        assert early == {name for name in every if name.startswith(("stages.0.", "stages.1.", "stages.2."))}
        assert {"stages.0.patch_embed.norm", "stages.2.norm", "stages.1.layers.0.attention.norm"} <= early
        assert {"stages.3.norm", "head.fusion_conv.bn"} <= every - early

    @pytest.mark.parametrize("choose", [adapt_norm_layers, adapt_weights_and_biases])
    def test_the_head_keeps_the_sources_statistics_and_learns_its_affine_parameters(self, choose):
        network = toy_segformer()
        adapted = {id(p) for p in choose(network)}
        for layer in batch_norms(network.head):
            assert layer.running_mean is not None
            assert {id(layer.weight), id(layer.bias)} <= adapted
        image = torch.rand(1, 3, 16, 16)
        assert torch.equal(network(image), toy_segformer()(image))


# Settings that make a method quick, and every branch of it reached.
SETTINGS = {
    "source": {},
    "tent": {"lr": 0.01},
    "sar": {"lr": 0.01, "reset_threshold": 0.05, "entropy_margin": 0.2},
    "eta": {"lr": 0.01, "cosine_margin": 0.6, "entropy_margin": 0.1},
    "eata": {"lr": 0.01, "cosine_margin": 0.6, "entropy_margin": 0.1, "num_source": 20},
    "rdumb": {"lr": 0.01, "cosine_margin": 0.6, "entropy_margin": 0.1, "reset_every": 2},
    "cotta": {"lr": 0.01, "num_views": 2, "loss": "hard_label", "threshold": 0.8, "restore_probability": 0.1},
    "dpcore": {"steps_new": 2, "num_source": 20, "prompt_length": 2},
    "dpcore_b": {"steps_new": 2, "num_source": 20, "prompt_length": 2, "buffer_size": 5},
    "dpcore_simplified": {"steps_new": 2, "num_source": 20, "prompt_length": 2},
}
QUICK = [
    checks.check_reset_is_bit_exact,
    checks.check_no_graph_is_kept,
    checks.check_odd_batches_are_survived,
    checks.check_prediction_timing_is_true,
    checks.check_passes_are_as_declared,
    checks.check_state_survives_save_and_load,
    checks.check_only_what_is_stepped_requires_gradients,
    checks.check_modules_stay_in_eval_mode,
]


@needs_mmseg
@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", SETTINGS)
def test_method_keeps_the_contract_on_pixels(name, check):
    check(lambda: METHODS[name](toy_segformer(), **SETTINGS[name]))


@needs_mmseg
def test_dpcore_keeps_the_contract_on_pixels_in_the_space_of_norms():
    for check in QUICK:
        check(lambda: DPCore(toy_segformer(), steps_new=2, num_source=20, prompt_space="norms"))


@needs_mmseg
@pytest.mark.slow
def test_methods_keep_the_whole_contract_on_pixels():
    for name in ("tent", "cotta"):
        checks.check_method(METHODS[name], backbone=toy_segformer, **SETTINGS[name])


class TestTent:
    def test_hard_labels_are_learned_pixel_by_pixel(self):
        built, images = adapting("tent", loss="hard_label", lr=0.1, nesterov=False), image(SURE, UNSURE)
        assert torch.equal(built.forward_and_adapt(images), images)
        weight, bias = leaves()
        F.cross_entropy(images[0, :, 0].T * weight + bias, torch.tensor([0, 0])).backward()
        torch.testing.assert_close(built.backbone.stages[0].bias.detach(), -0.1 * bias.grad)
        torch.testing.assert_close(built.backbone.stages[0].weight.detach(), 1 - 0.1 * weight.grad)

    @pytest.mark.parametrize(
        ("loss", "of"),
        [("entropy", softmax_entropy), ("hard_label", lambda scores: hard_cross_entropy(scores, scores))],
    )
    def test_a_step_lowers_the_mean_over_pixels(self, loss, of):
        built, images = adapting("tent", loss=loss, lr=0.1), image(SURE, UNSURE, SURE_TOO)
        before = built.forward_and_adapt(images)
        assert of(built.backbone(images)).mean() < of(before).mean()


class TestSAR:
    def test_learns_from_pixels_that_are_reliable_in_both_passes(self):
        # With this rho the second pass finds the middle pixel, just reliable before, unsure.
        barely = (2.75, 0.0, 0.0)
        built = adapting("sar", lr=0.1, rho=0.1, reset_threshold=0.0)
        images = torch.cat([image(SURE, barely, UNSURE), image(UNSURE, UNSURE, UNSURE)])
        assert torch.equal(built.forward_and_adapt(images), images)

        weight, bias = leaves()
        first = entropy_of([SURE, barely], weight, bias)
        assert (first < MARGIN).all()
        first.mean().backward()
        norm = torch.cat([weight.grad, bias.grad]).norm()
        up = [p.detach() + 0.1 * p.grad / norm for p in (weight, bias)]
        ascended = [p.clone().requires_grad_() for p in up]
        second = entropy_of([SURE, barely], *ascended)
        assert (second < MARGIN).tolist() == [True, False]
        second[0].backward()

        torch.testing.assert_close(built.backbone.stages[0].weight.detach(), 1 - 0.1 * ascended[0].grad)
        torch.testing.assert_close(built.backbone.stages[0].bias.detach(), -0.1 * ascended[1].grad)
        assert torch.equal(built.backbone.stages[1].weight.detach(), torch.ones(K).double())  # the last stage
        torch.testing.assert_close(built.entropy_average, second[:1].detach())
        assert built.passes() == (2, (1 + 1) / 2)  # one image of two, in each pass
        assert {"reliable": 2.0, "reliable_twice": 1.0, "recovered": 0.0}.items() <= built.diagnostics().items()

    def test_without_a_reliable_pixel_nothing_moves(self):
        built = adapting("sar", lr=0.1)
        built.forward_and_adapt(image(UNSURE, UNSURE))
        assert built.passes() == (1, 0)
        assert torch.equal(built.backbone.stages[0].weight.detach(), torch.ones(K).double())


class TestETA:
    def test_learns_from_reliable_pixels_the_more_the_surer_they_are(self):
        built = adapting("eta", lr=0.1)
        images = torch.cat([image(SURE, UNSURE, SURE_TOO), image(UNSURE, UNSURE, UNSURE)])
        assert torch.equal(built.forward_and_adapt(images), images)

        weight, bias = leaves()
        entropy = entropy_of([SURE, SURE_TOO], weight, bias)
        ((MARGIN - entropy.detach()).exp() * entropy).sum().div(2).backward()
        torch.testing.assert_close(built.backbone.stages[0].weight.detach(), 1 - 0.1 * weight.grad)
        torch.testing.assert_close(built.backbone.stages[0].bias.detach(), -0.1 * bias.grad)
        probabilities = torch.tensor([SURE, SURE_TOO]).double().softmax(dim=1)
        torch.testing.assert_close(built.mean_probabilities, probabilities.mean(dim=0))
        assert built.diagnostics() == {"reliable": 2.0, "selected": 2.0}
        assert built.passes() == (1, 0.5)

    @pytest.mark.parametrize(("cosine_margin", "selected"), [(0.5, 1.0), (1.5, 2.0)])
    def test_pixels_like_those_already_learned_from_are_left_out(self, cosine_margin, selected):
        built = adapting("eta", lr=0.0, cosine_margin=cosine_margin)
        built.forward_and_adapt(image(SURE, UNSURE))
        built.forward_and_adapt(image(SURE, SURE_TOO))
        assert built.diagnostics() == {"reliable": 2.0, "selected": selected}
        learned = torch.tensor([SURE, SURE_TOO]).double().softmax(dim=1)
        now = learned[1] if selected == 1.0 else learned.mean(dim=0)
        torch.testing.assert_close(built.mean_probabilities, 0.9 * learned[0] + 0.1 * now)

    def test_eata_measures_the_mean_over_pixels_of_its_own_labels(self):
        built, images = METHODS["eata"](Pixels(), num_source=1), image(SURE, UNSURE)
        built.double().configure_model()
        built.fit_source([images])
        weight, bias = leaves()
        F.cross_entropy(images[0, :, 0].T * weight + bias, torch.tensor([0, 0])).backward()
        torch.testing.assert_close(built.fisher[: 2 * K], torch.cat([weight.grad, bias.grad]) ** 2)


class TestCoTTA:
    # The first pixel leans to its own side of the image, so that its mirrored view contradicts it.
    ramp = torch.tensor([[1.5, 0.0], [0.0, 0.0], [0.0, 0.0]]).double()[None, :, None, :]
    images = image((0.0, 1.0, 0.0), (0.0, 0.0, 6.0))

    def cotta(self, **settings):
        ours = {"loss": "hard_label", "lr": 0.1, "nesterov": False, "restore_probability": 0.0, "num_views": 2}
        return adapting("cotta", Pixels(self.ramp), **{**ours, **settings})

    def views(self):
        plain = self.images + self.ramp
        mirrored = (self.images.flip(-1) + self.ramp).flip(-1)
        return plain.softmax(dim=1), mirrored.softmax(dim=1)

    def test_unsure_pixels_take_the_class_of_the_mean_over_views(self):
        built, (plain, mirrored) = self.cotta(threshold=0.69), self.views()
        assert (plain.amax(dim=1) > 0.69).flatten().tolist() == [False, True]
        fused = torch.cat([((plain + mirrored) / 2)[..., :1], plain[..., 1:]], dim=-1)
        scores = built.forward_and_adapt(self.images)
        torch.testing.assert_close(scores.softmax(dim=1), fused)
        assert plain.argmax(dim=1).flatten().tolist() == [0, 2]
        assert scores.argmax(dim=1).flatten().tolist() == [1, 2]
        assert built.passes() == (4, 1)
        assert built.diagnostics()["averages_views"] == 0.5

        weight, bias = leaves()  # the student learned the fused label
        logits = self.images[0, :, 0].T * weight + bias + self.ramp[0, :, 0].T
        F.cross_entropy(logits, torch.tensor([1, 2])).backward()
        torch.testing.assert_close(built.backbone.stages[0].weight.detach(), 1 - 0.1 * weight.grad)
        torch.testing.assert_close(built.backbone.stages[0].bias.detach(), -0.1 * bias.grad)
        torch.testing.assert_close(built.teacher.stages[0].bias.detach(), -0.001 * 0.1 * bias.grad)

    def test_sure_pixels_take_the_teachers_own_class(self):
        built, (plain, _) = self.cotta(threshold=0.1), self.views()
        torch.testing.assert_close(built.forward_and_adapt(self.images).softmax(dim=1), plain)

    def test_the_source_model_decides_which_pixels_are_sure(self):
        built = self.cotta(threshold=0.69)
        with torch.no_grad():
            built.teacher.stages[0].weight.mul_(100)  # a teacher that is sure everywhere
        scores = built.forward_and_adapt(self.images)
        assert built.diagnostics()["averages_views"] == 0.5
        assert built.diagnostics()["anchor_confidence"] == pytest.approx(self.views()[0].amax(dim=1).mean().item())
        assert torch.isfinite(scores).all()  # probabilities of zero, too

    @pytest.mark.parametrize(
        ("num_views", "sizes"),
        [
            (None, [(8, 16), (4, 8), (6, 12), (10, 20), (12, 24), (14, 28), (16, 32)]),
            (14, [(8, 16), (4, 8), (6, 12), (10, 20), (12, 24), (14, 28), (16, 32)]),
            (6, [(8, 16), (4, 8), (12, 24)]),
            (2, [(8, 16)]),
        ],
    )
    def test_the_teacher_looks_at_every_scale_twice(self, num_views, sizes):
        built, seen = adapting("cotta", num_views=num_views), []
        built.teacher.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[2:])))
        built.forward_and_adapt(torch.rand(1, K, 8, 16).double())
        assert seen == [size for size in sizes for _ in range(2)]
        assert built.passes() == (2 + 2 * len(sizes), 1)

    def test_one_view_is_the_image_itself(self):
        built, (plain, _) = self.cotta(num_views=1, threshold=0.99), self.views()
        torch.testing.assert_close(built.forward_and_adapt(self.images).softmax(dim=1), plain)
        assert built.passes() == (3, 1)

    def test_other_numbers_of_views_are_refused(self):
        with pytest.raises(ValueError, match=r"num_views must be 14, 6, 2 or 1 where pixels are scored, got 32"):
            CoTTA(Pixels(), num_views=32)


@pytest.fixture(scope="module")
def night():
    data = streets_c(domains="night", num_images=1)
    return torch.from_numpy(data.load("night", 0)).permute(2, 0, 1)[None] / 255


@pytest.fixture(scope="module")
def source():
    images = streets_c(num_images=1).source_images()
    return [torch.stack([torch.from_numpy(images[i]).permute(2, 0, 1) for i in range(4)]) / 255]


@needs_mmseg
class TestDPCore:
    def dpcore(self, source, **settings):
        built = DPCore(load_segformer("streets_segformer"), num_source=4, steps_new=5, **settings)
        built.configure_model()
        built.fit_source(source)
        return built

    def test_the_source_is_the_mean_of_its_images_statistics_over_positions(self, source):
        built = self.dpcore(source)
        with torch.no_grad():
            maps = built.backbone.features(source[0])
        each = [batch_statistics(one.flatten(1).T) for one in maps]  # positions as samples
        mean, std = (torch.stack(values).mean(dim=0) for values in zip(*each, strict=True))
        torch.testing.assert_close(built.source_mean, mean)
        torch.testing.assert_close(built.source_std, std)
        distances = [(one.mean - mean).norm() + (one.std - std).norm() for one in each]
        torch.testing.assert_close(built.source_spread, torch.stack(distances).mean())
        torch.testing.assert_close(built.source.floor(4, 4), built.source_spread / 2**0.5)  # 4 images here, 4 there

    @pytest.mark.parametrize(("space", "lr"), [("tokens", 0.1), ("norms", 0.003)])
    def test_one_image_is_enough_to_learn_a_prompt_that_lowers_the_distance(self, source, night, space, lr):
        built = self.dpcore(source, prompt_space=space, lr=lr)
        built.forward_and_adapt(night)
        assert built.passes() == (1 + 5, 5)
        assert built.coreset.prompt.shape[0] == 1
        distances = []
        for prompt in (built.initial_prompt, built.coreset.prompt[0]):
            built.space.load(prompt)
            embedded = built.space.embed(built.backbone, night)
            features = built.backbone.features_of(built.space.prompted(built.backbone, embedded))
            distances.append(built.source.distance(batch_statistics(features)))
        assert distances[1] < 0.9 * distances[0]

    def test_an_image_near_the_source_passes_by_if_asked_for(self, source):
        built = self.dpcore(source, floor_guard=2.0)
        with torch.no_grad():
            expected = load_segformer("streets_segformer")(source[0][:1])
        torch.testing.assert_close(built.forward_and_adapt(source[0][:1]), expected)
        assert built.passes() == (1, 0)
        assert len(built.coreset) == 0
        built.source_spread = built.source_spread / 100
        built.forward_and_adapt(source[0][:1])
        assert len(built.coreset) == 1
