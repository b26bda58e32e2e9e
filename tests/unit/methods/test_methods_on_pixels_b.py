"""Methods on a segmentation network, part 2: what differs from classification, in numbers checked by hand."""

from __future__ import annotations

import io
import math

import pytest
import torch
from torch import nn

from tests.helpers.segmenting import needs_mmseg
from tta_bench.functional import soft_cross_entropy, softmax_entropy
from tta_bench.functional.hog import hog_targets
from tta_bench.functional.parameters import batch_norms
from tta_bench.methods import METHODS
from tta_bench.models.backbones.segformer import SegFormerBackbone
from tta_bench.models.loading.segformer import segformer
from tta_bench.models.parts.adapters import AdaptedLinear
from tta_bench.models.parts.partitions import MapMeta, encode_with_distances, partitions
from tta_bench.models.parts.stage_prompts import encode_prompted, project, stage_prompts
from tta_bench.types import SourceNeed

pytestmark = needs_mmseg

CLASSES, SIZE = 5, (40, 72)  # no multiples of 32
IMAGES = torch.rand(3, 3, *SIZE, generator=torch.Generator().manual_seed(0))
# Settings that make a method quick, and every branch of it reached.
SETTINGS = {
    "bdg": {"lr": 0.01, "threshold_momentum": 0.5, "alignment": 0.1},
    "cmae": {"lr": 0.001, "num_views": 2},
    "dept": {"warmup_steps": 2, "prompt_length": 2, "head_width": 16},
    "ecotta": {"warmup_steps": 2, "bottleneck": 4, "entropy_margin": 0.8},
    "rotta": {"memory_size": 10, "update_every": 2},
    "vdp": {"warmup_steps": 2, "jump": 0.0},
    "vida": {"warmup_steps": 2, "num_views": 2},
}


def rng():
    return torch.Generator().manual_seed(0)


def network():
    """A narrow SegFormer that is sure of some pixels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = segformer(CLASSES, embed_dims=8, num_layers=(1, 2, 1, 1), channels=12)
        nn.init.normal_(made.decode_head.conv_seg.weight, std=3.0)
        for layer in made.modules():  # weights of one leave the mean over channels at zero
            if isinstance(layer, nn.LayerNorm):
                nn.init.normal_(layer.weight, 1.0, 0.3)
    return SegFormerBackbone(made.backbone, made.decode_head, (0.5,) * 3, (0.25,) * 3).eval()


def source():
    labels = torch.randint(CLASSES, (3, *SIZE), generator=rng())
    labels[:, :4] = 255
    return [(IMAGES, labels)]


def method(name, **settings):
    built = METHODS[name](network(), **{**SETTINGS[name], **settings})
    built.configure_model()
    if built.source_need is not SourceNeed.NOTHING:
        built.fit_source(source())
    return built


def adapt(built):
    return torch.cat([built.forward_and_adapt(image[None]).detach().clone() for image in IMAGES])


@pytest.mark.parametrize("name", SETTINGS)
class TestEveryMethod:
    def test_scores_every_pixel_of_one_image_after_the_other_and_forgets_on_reset(self, name):
        built = method(name)
        assert built.segments
        before = {key: value.clone() for key, value in built.state_dict().items()}
        scores = adapt(built)
        assert scores.shape == (3, CLASSES, *SIZE)
        assert torch.isfinite(scores).all()
        assert any(not torch.equal(value, before[key]) for key, value in built.state_dict().items() if key in before)
        built.reset()
        after = built.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after[key]) for key, value in before.items())
        assert torch.equal(adapt(built), scores)

    def test_declares_its_passes(self, name):
        built = method(name)
        meter = built.backbone.meter
        for images in (*IMAGES.split(1), IMAGES[:2]):
            before = meter.forward_samples, meter.backward_samples
            built.forward_and_adapt(images)
            counted = meter.forward_samples - before[0], meter.backward_samples - before[1]
            assert counted[0] >= len(images)
            assert built.passes() == pytest.approx([count / len(images) for count in counted])

    def test_goes_on_from_a_saved_state(self, name):
        built, other, file = method(name), method(name), io.BytesIO()
        built.forward_and_adapt(IMAGES[:1])
        torch.save(built.adaptation_state(), file)
        file.seek(0)
        other.load_adaptation_state(torch.load(file, weights_only=True))
        for image in IMAGES[1:]:
            assert torch.equal(built.forward_and_adapt(image[None]), other.forward_and_adapt(image[None]))

    def test_the_heads_batch_norm_keeps_the_statistics_of_the_source(self, name):
        built = method(name)
        adapt(built)
        if name == "rotta":  # robust batch norm: it is about them
            assert all(layer.running_mean is None for layer in batch_norms(built.backbone))
            return
        now, then = batch_norms(built.backbone), batch_norms(network())
        assert len(now) == len(then) == 5
        assert all(torch.equal(a.running_mean, b.running_mean) for a, b in zip(now, then, strict=True))
        assert all(torch.equal(a.running_var, b.running_var) for a, b in zip(now, then, strict=True))


@torch.no_grad()
def source_scores(images):
    return network()(images)


class TestRoTTA:
    def test_an_image_is_stored_under_its_most_frequent_class_and_the_mean_entropy_of_its_pixels(self, monkeypatch):
        built = method("rotta", update_every=9)
        logits = torch.zeros(2, CLASSES, 1, 3)
        logits[0, 3, 0, :2] = math.log(4.0)  # two pixels of three: 4 of 8
        logits[0, 1, 0, 2] = 99.0
        logits[1, 2] = 99.0
        monkeypatch.setattr(built.teacher, "forward", lambda images: logits)
        built.forward_and_adapt(IMAGES[:2])
        assert built.memory.labels.tolist() == [2, 3]
        unsure = math.log(8) - 0.5 * math.log(4)  # -1/2 ln 1/2 - 4/8 ln 1/8
        torch.testing.assert_close(built.memory.entropies, torch.tensor([0.0, 2 / 3 * unsure]), rtol=1e-5, atol=1e-6)

    def test_the_loss_weighs_the_mean_over_pixels_by_the_age_of_the_image(self, monkeypatch):
        built = method("rotta", update_every=2, memory_size=50, views="identity", alpha=0.0)
        losses = []
        monkeypatch.setattr(built, "update", losses.append)
        built.forward_and_adapt(IMAGES[:2])
        images, ages = built.memory.images, built.memory.ages
        scores = source_scores(images)
        each = soft_cross_entropy(scores, scores).mean(dim=(1, 2))
        assert sorted(ages.tolist()) == [1, 2]
        assert losses[0].item() == pytest.approx((torch.sigmoid(-ages / 50) * each).mean().item(), rel=1e-5)


class TestDePT:
    def test_a_stage_makes_of_a_prompt_what_it_would_look_at(self):
        backbone = method("dept").backbone
        seen = encode_prompted(backbone, IMAGES[:1])
        assert [tuple(output.shape) for output in seen.outputs] == [(1, 2, width) for width in (8, 16, 40, 64)]
        positions = seen.encoded.maps[1][0].flatten(1)  # (16, N)
        prompt = stage_prompts(backbone).prompts[1, 8:24]
        weights = (prompt @ positions / 4).softmax(dim=0)
        torch.testing.assert_close(seen.outputs[1][0, 1], positions @ weights)
        torch.testing.assert_close(seen.features[0], seen.encoded.maps[-1][0].mean(dim=(1, 2)))
        heads = stage_prompts(backbone).heads
        projection, prompts = project(backbone, seen)
        torch.testing.assert_close(projection, heads[3](seen.features))
        torch.testing.assert_close(prompts[0, 1, 1], heads[1](seen.outputs[1][0, 1]))

    def test_every_prompt_has_its_stages_keys_and_values(self):
        backbone = method("dept").backbone
        before = encode_prompted(backbone, IMAGES[:1]).encoded.maps
        with torch.no_grad():
            stage_prompts(backbone).prompts[:, 8:24].add_(1.0)
        after = encode_prompted(backbone, IMAGES[:1]).encoded.maps
        assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, False, False, False]

    def test_pixels_learn_the_teachers_classes_where_the_students_view_has_them(self, monkeypatch):
        built = method("dept", teacher_momentum=1.0)
        with torch.no_grad():
            labels = built.teacher.classify(encode_prompted(built.teacher, IMAGES[:1]).encoded).argmax(dim=1)
        losses, views = [], []
        monkeypatch.setattr(built, "draw_view", lambda x, y: (x.flip(-1), y.flip(-1)))
        see = built.see
        monkeypatch.setattr(built, "see", lambda *seen: (views.extend(seen), see(*seen))[1])
        monkeypatch.setattr(built, "loss", lambda student, teacher, y: (losses.append(y), student.logits.sum())[1])
        built.forward_and_adapt(IMAGES[:1])
        assert torch.equal(views[0], IMAGES[:1].flip(-1))
        assert torch.equal(losses[0], labels.flip(-1))
        assert len(labels.unique()) > 1
        assert len(built.memory_features) == 0

    def test_prompts_heads_and_the_classifier_of_pixels_are_trained(self):
        trained = {name for name, p in method("dept").backbone.named_parameters() if p.requires_grad}
        assert {name for name in trained if not name.startswith("stage_prompts.")} == {
            "head.conv_seg.weight", "head.conv_seg.bias",
        }  # fmt: skip

    def test_other_stages_than_the_networks_are_refused(self):
        with pytest.raises(ValueError, match=r"has 4 stages: set stages=4"):
            METHODS["dept"](network(), stages=2).configure_model()


class TestVDP:
    def test_a_prompt_is_stretched_over_the_image(self):
        built = method("vdp", grid=4, frame_width=1)
        values = torch.arange(1.0, 13.0).expand(3, -1)  # twelve cells around 2 x 2
        added = built.prompted(torch.zeros(1, 3, 8, 16), values)[0, 0]
        assert added[0, 0] == 1
        assert added[0, -1] == 4
        assert added[-1, -1] == 12
        assert not added[3:5, 6:10].any()
        assert added[0, 4].item() == pytest.approx(1 + 0.625)  # (4 + 1/2) / 4 - 1/2 of the way between pixels

    def test_confidence_is_a_mean_over_pixels(self):
        built = method("vdp")
        prompt = built.teacher_agnostic.clone()
        built.forward_and_adapt(IMAGES[:1])
        expected = source_scores(built.prompted(IMAGES[:1], prompt)).softmax(dim=1).amax(dim=1).mean()
        assert built.diagnostics()["confidence"] == pytest.approx(expected.item(), rel=1e-5)


class TestEcoTTA:
    def test_a_meta_part_of_maps_is_affine_and_a_strided_bottleneck(self):
        meta = MapMeta(1, 1, 2, 1, rng())
        meta.scale.data.fill_(2.0)
        meta.shift.data.fill_(10.0)
        meta.down.weight.data.zero_()[0, 0, 1, 1] = 1.0  # passes on every second pixel
        meta.up.weight.data.fill_(100.0)
        x = torch.zeros(1, 1, 3, 5)
        x[0, 0, 2, 4] = 1.5
        out = meta(x, torch.full((1, 1, 2, 3), 5.0))
        assert out[0, 0, 0].tolist() == [20.0, 20.0, 20.0]
        gelu = 1.5 * (1 + math.erf(1.5 / math.sqrt(2))) / 2
        assert out[0, 0, 1, 2].item() == pytest.approx(20 + 100 * gelu)

    def test_the_partitions_are_the_stages_and_start_without_effect(self):
        built = method("ecotta", warmup_steps=0, entropy_margin=0.0, lr=0.0)
        assert len(partitions(built.backbone)) == len(built.backbone.stages) == 4
        assert torch.equal(built.forward_and_adapt(IMAGES[:1]).detach(), source_scores(IMAGES[:1]))
        _, distances = encode_with_distances(built.backbone, IMAGES, local=True)
        assert distances.shape == (3, 4)
        partitions(built.backbone)[2].meta.shift.data.fill_(-0.25)
        _, distances = encode_with_distances(built.backbone, IMAGES, local=True)
        torch.testing.assert_close(distances, torch.tensor([0.0, 0.0, 0.25, 0.0]).expand(3, 4), rtol=0, atol=1e-6)

    def test_the_margin_selects_pixels(self):
        built = method("ecotta", entropy_margin=0.5)
        logits = torch.zeros(2, CLASSES, 2, 2)
        logits[0, 0, 0, 0], logits[0, 1, 1, 1], logits[0, 2, 1, 0] = 9.0, 8.0, 7.0
        logits[0, 3, 0, 1] = 3.0  # 0.68, below half of ln 5 but not of ln 2, the logarithm of a width
        chosen = built.confident_entropies(logits)
        torch.testing.assert_close(chosen, softmax_entropy(logits)[0].flatten())
        assert built.diagnostics()["selected"] == 4 / 8
        assert built.passes() == (2, 0.5)

    def test_the_single_mode_takes_one_pass(self):
        built = method("ecotta", mode="single")
        assert adapt(built).shape == (3, CLASSES, *SIZE)
        assert built.backbone.meter.forward_samples == 2 * 3 + 3  # the warm-up, and the stream

    def test_other_partitions_than_the_stages_are_refused(self):
        with pytest.raises(ValueError, match=r"partitions are its 4 stages: set partitions=4"):
            METHODS["ecotta"](network(), partitions=2).configure_model()


class TestViDA:
    def test_queries_keys_values_and_outputs_are_adapted_no_wider_than_their_layer(self):
        built = method("vida", warmup_steps=0)
        adapted = {name: m for name, m in built.backbone.named_modules() if isinstance(m, AdaptedLinear)}
        assert len(adapted) == (1 + 2 + 1 + 1) * 4
        assert {name.rpartition(".")[2] for name in adapted} == {"query", "key", "value", "proj"}
        for layer in adapted.values():
            assert (layer.low[0].out_features, layer.high[0].out_features) == (1, min(128, layer.linear.in_features))
        assert torch.equal(built.forward_and_adapt(IMAGES[:1]), source_scores(IMAGES[:1]))

    def test_views_keep_pixels_in_their_places(self):
        built = method("vida", views="flip")
        built.forward_and_adapt(IMAGES[:1])
        assert built.diagnostics()["uncertainty"] == 0  # mirrored, they would differ


class TestBDG:
    def test_pixels_take_the_place_of_images(self):
        logits, source = torch.randn(2, 2, CLASSES, 4, 6, generator=rng()).mul(2)
        as_images = [x.permute(0, 2, 3, 1).reshape(-1, CLASSES) for x in (logits, source)]
        built, other = method("bdg"), method("bdg")
        target, expected = built.supervise(logits, source), other.supervise(*as_images)
        torch.testing.assert_close(target.permute(0, 2, 3, 1).reshape(-1, CLASSES), expected)
        assert 0 < built.diagnostics()["reliable"] < 48
        assert built.diagnostics() == other.diagnostics()
        weights, expected_weights = built.diversity(target.exp()), other.diversity(expected.exp())
        assert weights.shape == (2, 4, 6)
        torch.testing.assert_close(weights.flatten(), expected_weights)
        for state in ("threshold", "frequency", "supervision"):
            torch.testing.assert_close(getattr(built, state), getattr(other, state))


class TestCMAE:
    def test_hidden_squares_are_painted_over(self):
        backbone = network()
        mask = torch.tensor([[True, False, False, False, False, True]])  # 2 rows of 3 squares
        token = torch.tensor([1.0, 2.0, 3.0])
        seen = backbone.embed_masked(IMAGES[:1], mask, token).tokens
        shown = (IMAGES[:1] - 0.5) / 0.25
        assert torch.equal(seen[0, :, :32, :32], token[:, None, None].expand(3, 32, 32))
        assert torch.equal(seen[0, :, 32:, 64:], token[:, None, None].expand(3, 8, 8))
        assert torch.equal(seen[..., :32, 32:], shown[..., :32, 32:])
        assert torch.equal(seen[..., 32:, :64], shown[..., 32:, :64])
        _, patches = backbone.encode_patches(backbone.embed(IMAGES[:1]))
        assert patches.shape == (1, 6, 64)
        torch.testing.assert_close(patches[0, 4], backbone.features(IMAGES[:1])[0, :, 1, 1])

    @pytest.mark.parametrize(("ratio", "count"), [(0.5, 3), (0.34, 2), (1.0, 6)])
    def test_the_floor_of_the_ratio_of_the_squares_is_hidden(self, ratio, count):
        assert method("cmae", mask_ratio=ratio).choose_mask(IMAGES).sum(dim=1).tolist() == [count] * 3

    def test_what_is_reconstructed_goes_on_at_the_border_as_it_ends(self):
        built = method("cmae")
        assert built.extra_parameters() == 3 + (64 + 1) * 3 * 9 * 16
        nn.init.zeros_(built.reconstruct.weight)
        mask = torch.zeros(1, 6, dtype=torch.bool)
        mask[0, 2] = True  # columns 64 to 71 of 96
        wide = torch.cat([IMAGES[:1], IMAGES[:1, ..., -1:].expand(-1, -1, -1, 24)], dim=-1)
        filled = torch.cat([wide, wide[..., -1:, :].expand(-1, -1, 24, -1)], dim=-2)
        expected = hog_targets(filled, 32)[0, 2].square().mean()
        loss = built.reconstruction_loss(torch.zeros(1, 6, 64), IMAGES[:1], mask)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
