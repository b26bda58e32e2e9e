"""SegFormer as a backbone: the numbers of mmsegmentation, prompts, passes, windows, and files that do not fit."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchmetrics.functional.classification import multiclass_jaccard_index

from tests.helpers.ranks import on_ranks
from tests.helpers.segmenting import needs_mmseg
from tta_bench.datasets.segmentation.streets_c import streets_c
from tta_bench.methods import Source
from tta_bench.models.backbones.segformer import SegFormerBackbone, Sliding
from tta_bench.models.loading.load_model import weights_sha256
from tta_bench.models.loading.segformer import load_segformer, read_mmseg_config, segformer
from tta_bench.models.parallel import average_gradients

B0 = "segformer_mit-b0_8xb1-160k_cityscapes-1024x1024"
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
IMAGES = torch.rand(3, 3, 36, 52, generator=torch.Generator().manual_seed(0), dtype=torch.double)  # no multiple of 32
META = {"img_shape": (36, 52), "ori_shape": (36, 52)}


def network():
    """A narrow SegFormer without zeros and ones, so that nothing can be left out unnoticed."""
    torch.manual_seed(0)
    made = segformer(5, embed_dims=8, num_layers=(1, 2, 1, 1), channels=12).double().eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0.05, 0.2)
    for layer in made.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.2)
            layer.running_var.uniform_(0.5, 2)
    return made


def backbone(sliding=None, of=None):
    of = network() if of is None else of
    return SegFormerBackbone(of.backbone, of.decode_head, MEAN, STD, sliding).double().eval()


def segmentor(test_cfg):
    """mmsegmentation's own model around the same weights."""
    from mmseg.models import EncoderDecoder
    from mmseg.utils import register_all_modules

    register_all_modules()
    encoder = {"type": "MixVisionTransformer", "embed_dims": 8, "num_layers": [1, 2, 1, 1], "num_heads": [1, 2, 5, 8]}
    head = {
        "type": "SegformerHead",
        "in_channels": [8, 16, 40, 64],
        "in_index": [0, 1, 2, 3],
        "channels": 12,
        "num_classes": 5,
        "norm_cfg": {"type": "SyncBN", "requires_grad": True},
        "loss_decode": {"type": "CrossEntropyLoss", "avg_non_ignore": True},
    }
    theirs = EncoderDecoder(encoder, head, test_cfg=test_cfg).double().eval()
    theirs.load_state_dict(network().state_dict())
    return theirs


def normalised(images):
    mean, std = (torch.tensor(x, dtype=torch.double).view(3, 1, 1) for x in (MEAN, STD))
    return (images - mean) / std


def config(**settings):
    from mmengine.config import ConfigDict

    return ConfigDict(settings)


@needs_mmseg
class TestTheNetwork:
    def test_has_the_scores_of_mmsegmentation_and_its_last_map(self):
        ours, theirs = backbone(), segmentor(config(mode="whole"))
        torch.testing.assert_close(ours(IMAGES), theirs.inference(normalised(IMAGES), [META]))
        maps = theirs.extract_feat(normalised(IMAGES))
        torch.testing.assert_close(ours.features(IMAGES), maps[-1])
        encoded = ours.encode(ours.embed(IMAGES))
        torch.testing.assert_close(encoded.maps, tuple(maps))
        torch.testing.assert_close(ours.classify(encoded), ours(IMAGES))
        assert ours(IMAGES).shape == (3, 5, 36, 52)
        assert (ours.feature_dim, ours.prompt_dim, ours.num_classes) == (64, 8 + 16 + 40 + 64, 5)

    @pytest.mark.parametrize(("crop", "stride"), [((32, 32), (16, 24)), ((32, 64), (3, 64)), ((64, 64), (48, 48))])
    def test_slides_as_mmsegmentation_does(self, crop, stride):
        theirs = segmentor(config(mode="slide", crop_size=crop, stride=stride))
        expected = theirs.inference(normalised(IMAGES), [META])
        ours = backbone(Sliding(crop, stride))
        torch.testing.assert_close(ours(IMAGES), expected)
        torch.testing.assert_close(Source(backbone(Sliding(crop, stride))).forward_and_adapt(IMAGES), expected)
        windows = len(Sliding(crop, stride).windows((36, 52)))
        assert ours.meter.forward_samples == 3 * windows
        ours(IMAGES).square().mean().backward()
        assert ours.meter.backward_samples == 3 * windows

    def test_keeps_no_sync_batch_norm_and_no_packed_attention(self):
        kinds = {type(layer) for layer in backbone().modules()}
        assert not {nn.SyncBatchNorm, nn.MultiheadAttention} & kinds
        named = dict(backbone().named_parameters())
        assert {name.rpartition(".")[2] for name in named} == {"weight", "bias"}
        assert sum(p.numel() for p in named.values()) == sum(p.numel() for p in network().parameters())

    def test_every_parameter_gets_a_gradient(self):
        ours = backbone()
        ours(IMAGES).square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ours.parameters())

    def test_in_training_drops_what_mmsegmentation_drops(self):
        def rates(module):
            return [m.drop_prob for m in module.modules() if type(m).__name__ == "DropPath"]

        made = segformer(3, embed_dims=8)
        expected = rates(made.backbone)
        dropped = rates(backbone(of=made))
        assert sorted(dropped) == sorted(expected)
        assert max(dropped) == pytest.approx(0.1)


@needs_mmseg
class TestPasses:
    def test_are_counted_at_the_door(self):
        ours = backbone()
        twin = deepcopy(ours)
        encoded = ours.encode(ours.embed(IMAGES))
        assert (ours.meter.forward_samples, ours.meter.backward_samples) == (3, 0)
        ours.classify(encoded)[1].sum().backward()
        assert ours.meter.backward_samples == 1  # only one image was learned from
        twin.features(IMAGES)
        assert ours.meter.forward_samples == 6  # a teacher's passes are its student's

    def test_without_a_graph_are_no_backward_passes(self):
        ours = backbone()
        detached = ours.encode(ours.embed(IMAGES)).detach()
        ours.classify(detached).sum().backward()
        assert (ours.meter.forward_samples, ours.meter.backward_samples) == (3, 0)


@needs_mmseg
class TestAPrompt:
    def prompt(self, length=2):
        return torch.randn(length, 128, generator=torch.Generator().manual_seed(1), dtype=torch.double)

    def test_stands_beside_keys_and_values_of_its_stage(self):
        ours, prompt = backbone(), self.prompt()
        x = ours.normalize(IMAGES)
        for stage, own in zip(ours.stages, prompt.split([8, 16, 40, 64], dim=1), strict=True):
            x = by_hand(stage, x, own)
        torch.testing.assert_close(ours.features(IMAGES, prompt), x)

    @pytest.mark.parametrize("stage", range(4))
    def test_changes_its_stage_and_those_after_it(self, stage):
        ours = backbone()
        embedded, own = ours.embed(IMAGES), [torch.zeros(2, width).double() for width in (8, 16, 40, 64)]
        plain = ours.encode(embedded, torch.cat(own, dim=1))
        own[stage] += 1
        moved = ours.encode(embedded, torch.cat(own, dim=1))
        changed = [not torch.allclose(a, b) for a, b in zip(plain.maps, moved.maps, strict=True)]
        assert changed == [s >= stage for s in range(4)]

    def test_keeps_the_size_of_maps_and_scores_and_learns(self):
        ours, prompt = backbone(), self.prompt().requires_grad_()
        encoded = ours.encode(ours.embed(IMAGES), prompt)
        assert [tuple(m.shape) for m in encoded.maps] == [
            (3, 8, 9, 13), (3, 16, 5, 7), (3, 40, 3, 4), (3, 64, 2, 2)
        ]  # fmt: skip
        ours.classify(encoded).square().mean().backward()
        assert all(part.abs().sum() > 0 for part in prompt.grad.split([8, 16, 40, 64], dim=1))

    def test_of_no_tokens_is_no_prompt(self):
        ours = backbone()
        torch.testing.assert_close(ours.features(IMAGES, self.prompt(0)), ours.features(IMAGES))


def by_hand(stage, x, prompt):
    """One stage, with the attention written out head by head."""
    tokens, (height, width) = stage.patch_embed(x)
    for layer in stage.layers:
        attention, normed = layer.attention, layer.norm1(tokens)
        seen = normed
        if attention.reduction is not None:
            small = attention.reduction(normed.mT.reshape(len(normed), -1, height, width))
            seen = attention.norm(small.flatten(2).mT)
        seen = torch.cat([seen, prompt[None].repeat(len(seen), 1, 1)], dim=1)
        q, k, v = attention.query(normed), attention.key(seen), attention.value(seen)
        dim = q.shape[2] // attention.heads
        heads = []
        for h in range(attention.heads):
            part = slice(h * dim, (h + 1) * dim)
            weights = (q[..., part] @ k[..., part].mT / dim**0.5).softmax(dim=2)
            heads.append(weights @ v[..., part])
        tokens = tokens + attention.proj(torch.cat(heads, dim=2))
        tokens = layer.ffn(layer.norm2(tokens), (height, width), identity=tokens)
    return stage.norm(tokens).mT.reshape(len(tokens), -1, height, width)


def test_windows_cover_an_image_and_stay_inside():
    windows = Sliding((4, 6), (3, 6)).windows((9, 7))
    assert [(r.start, r.stop, c.start, c.stop) for r, c in windows] == [
        (0, 4, 0, 6), (0, 4, 1, 7), (3, 7, 0, 6), (3, 7, 1, 7), (5, 9, 0, 6), (5, 9, 1, 7)
    ]  # fmt: skip
    assert Sliding((1024, 1024), (768, 768)).windows((540, 960)) == [(slice(0, 540), slice(0, 960))]
    scales = [Sliding((1024, 1024), (768, 768)).windows((int(540 * s), int(960 * s))) for s in (0.5, 1.25, 1.75, 2)]
    assert [len(w) for w in scales] == [1, 2, 2, 6]  # as the published protocol has it


@pytest.fixture(scope="module")
def b0():
    """Random weights of a B0, under mmsegmentation's names."""
    torch.manual_seed(0)
    return segformer(19).state_dict()


@needs_mmseg
class TestLoading:
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda state: {
                "meta": {"dataset_meta": {"classes": ("road",), "palette": [[1, 2, 3]]}},
                "state_dict": state,
            },
            lambda state: {
                "meta": {"CLASSES": ["road"], "mmseg_version": "0.20"},
                "state_dict": state,
                "optimizer": {},
            },
            lambda state: {"state_dict": state, "message_hub": Logs()},
            lambda state: {f"module.{key}": value for key, value in state.items()},
            lambda state: state,
        ],
    )
    def test_reads_the_checkpoints_of_mmsegmentation(self, tmp_path, b0, wrap):
        torch.save(wrap(b0), tmp_path / "b0.pth")
        ours = load_segformer(B0, tmp_path / "b0.pth")
        assert (ours.num_classes, ours.feature_dim, ours.training, ours.dtype) == (19, 256, False, torch.float32)
        assert ours.sliding == Sliding((1024, 1024), (768, 768))
        assert ours.weights_sha256 == weights_sha256(b0)
        torch.testing.assert_close(ours.normalize.mean.flatten() * 255, torch.tensor([123.675, 116.28, 103.53]))
        torch.testing.assert_close(ours.normalize.std.flatten() * 255, torch.tensor([58.395, 57.12, 57.375]))
        assert torch.equal(ours.stages[2].layers[1].attention.key.weight, key_of(b0, stage=2, layer=1))
        assert ours(torch.zeros(1, 3, 32, 64)).shape == (1, 19, 32, 64)

    def test_a_key_chooses_among_state_dicts(self, tmp_path, b0):
        other = {name: value + 1 for name, value in b0.items()}
        torch.save({"state_dict": b0, "state_dict_ema": other}, tmp_path / "w.pth")
        ours = load_segformer(B0, tmp_path / "w.pth", checkpoint_key="state_dict")
        assert ours.weights_sha256 == weights_sha256(b0)
        assert ours.weights_origin == {"key": "state_dict", "prefix": "", "also_fits": []}

    @pytest.mark.parametrize("size", range(6))
    def test_knows_every_size(self, size):
        described = read_mmseg_config(Path(B0.replace("b0", f"b{size}")))
        parameters = sum(p.numel() for p in described.network.parameters()) / 1e6
        assert parameters == pytest.approx([3.72, 13.68, 24.73, 44.6, 61.39, 81.98][size], abs=0.02)

    def test_reads_a_card(self, tmp_path):
        kwargs = "{num_classes: 3, embed_dims: 8, channels: 12}"
        (tmp_path / "c.yaml").write_text(
            f"architecture: segformer\nkwargs: {kwargs}\nmean: [0.5, 0.4, 0.3]\nstd: [1, 1, 1]\n"
        )
        made = segformer(3, embed_dims=8, channels=12)
        half = {key: v.half() if v.is_floating_point() else v for key, v in made.state_dict().items()}
        save_file(half, tmp_path / "w.safetensors")
        ours = load_segformer(tmp_path / "c.yaml", tmp_path / "w.safetensors", mean=[0.5, 0.4, 0.2], std=[1, 1, 0.5])
        assert (ours.num_classes, ours.dtype, ours.sliding) == (3, torch.float32, None)
        assert ours.normalize.mean.flatten().tolist() == pytest.approx([0.5, 0.4, 0.2])
        assert ours.normalize.std.flatten().tolist() == [1, 1, 0.5]
        with pytest.raises(ValueError, match=r"mean .* is for images in 0\.\.255"):
            load_segformer(
                tmp_path / "c.yaml", tmp_path / "w.safetensors", mean=[123.7, 116.3, 103.5], std=[58, 57, 57]
            )

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("cut off", "is not a readable checkpoint of tensors only"),
            ("no weights", r"holds no state dict of tensors, only meta \(dict\), state_dict \(dict\): save"),
            ("other classes", r"does not fit the model: decode_head.conv_seg.weight has shape \(8, 256, 1, 1\) where"),
            ("missing", "does not fit the model: missing backbone.layers.0.0.projection.weight"),
            ("other names", r"does not fit the model: missing backbone\..*; unexpected encoder\.x"),
        ],
    )
    def test_refuses_what_does_not_fit_in_one_sentence(self, tmp_path, b0, damage, message):
        path, state = tmp_path / "w.pth", dict(b0)
        if damage == "no weights":
            state = {"epoch": 3}
        elif damage == "other classes":
            state["decode_head.conv_seg.weight"] = torch.zeros(8, 256, 1, 1)
        elif damage == "missing":
            del state["backbone.layers.0.0.projection.weight"]
        elif damage == "other names":
            state = {f"encoder.x{key}": value for key, value in state.items()}
        torch.save({"meta": {}, "state_dict": state}, path)
        if damage == "cut off":
            path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(ValueError, match=message) as error:
            load_segformer(B0, path)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("segformer", None, "ships no SegFormer configuration 'segformer'$"),
            (B0.replace("-1024", ""), None, f"ships no SegFormer configuration .*; did you mean '{B0}'"),
            ("x.py", None, r"^model\.config=\S+x\.py does not exist$"),
            ("x.py", "model = dict(", r"x.py is not a configuration of mmsegmentation"),
            ("x.py", "model = dict(type='EncoderDecoder')", "does not describe a SegFormer, but: EncoderDecoder"),
            ("x.yaml", None, r"^model\.config=\S+x\.yaml does not exist$"),
            ("x.yaml", "architecture: vit", "must contain 'architecture: segformer'"),
            ("x.yaml", "architecture: segformer\nfoo: 1", "unknown key 'foo'"),
            ("x.yaml", "architecture: segformer\nkwargs: {foo: 1}", "rejects its kwargs"),
        ],
    )
    def test_refuses_configurations_in_one_sentence(self, tmp_path, name, text, message):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            load_segformer(tmp_path / name if "." in name else name, tmp_path / "w.pth")

    def test_finds_the_weights_in_the_package(self):
        ours, data = load_segformer("streets_segformer"), streets_c(domains=["day", "night"], num_images=6)
        assert sum(p.numel() for p in ours.parameters()) == 879_544
        miou = {}
        for domain in data.domains:
            images = np.stack([data.load(domain, i) for i in range(6)])
            labels = np.stack([data.label_map(domain, i) for i in range(6)])
            with torch.no_grad():
                predicted = ours(torch.from_numpy(images).permute(0, 3, 1, 2) / 255).argmax(dim=1)
            miou[domain] = multiclass_jaccard_index(predicted, torch.from_numpy(labels).long(), 8, ignore_index=255)
        assert miou["day"] > 0.75
        assert miou["night"] < 0.6

    def test_needs_a_checkpoint(self):
        with pytest.raises(ValueError, match=r"describes a model without weights: give model\.checkpoint too"):
            load_segformer(B0)


def learned(batch_size):
    """Scores, the gradients of a prompt and of two layers, and passes, after one step on a batch."""
    ours, prompt = backbone(), torch.zeros(2, 128, dtype=torch.double, requires_grad=True)
    encoded = ours.encode(ours.embed(IMAGES[:batch_size]), prompt)
    scores = ours.classify(encoded)
    (scores.square().mean() + encoded.features.mean()).backward()
    parameters = [prompt, ours.stages[0].norm.weight, ours.head.conv_seg.weight]
    average_gradients(parameters)
    return [scores.detach(), *(p.grad for p in parameters)], ours.meter.forward_samples, ours.meter.backward_samples


def _learned_of_each_size():
    return [([t.numpy() for t in tensors], *passes) for tensors, *passes in map(learned, (3, 2, 1))]


@needs_mmseg
@pytest.mark.slow
def test_two_devices_give_the_numbers_of_one():
    results = on_ranks(2, _learned_of_each_size)
    for batch_size, (tensors, *passes) in zip((3, 2, 1), results, strict=True):
        expected, *expected_passes = learned(batch_size)
        assert passes == expected_passes == [batch_size, batch_size]
        for a, b in zip(tensors, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(a), b)


class Logs:
    """An object in a checkpoint, as mmengine's training leaves there."""


def key_of(state, stage, layer):
    return state[f"backbone.layers.{stage}.1.{layer}.attn.attn.in_proj_weight"].chunk(3)[1]


class TestWithoutTheExtra:
    def test_one_sentence_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr("tta_bench.models.loading.segformer.find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"^SegFormer needs mmsegmentation: pip install 'tta_bench\[seg\]'$"):
            load_segformer(B0, "w.pth")

    def test_official_packages_without_ops_are_told_apart(self, monkeypatch, tmp_path):
        for name in [name for name in sys.modules if name.partition(".")[0] == "mmseg"]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / "mmseg").mkdir()
        (tmp_path / "mmseg/__init__.py").write_text("")
        (tmp_path / "mmseg/models.py").write_text("import mmcv_ext_that_is_not_there")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ValueError, match=r"cannot be imported \(No module named .*pip uninstall mmsegmentation"):
            load_segformer(B0, "w.pth")
        for name in [name for name in sys.modules if name.partition(".")[0] == "mmseg"]:
            del sys.modules[name]  # or later tests would find the package that is not there
