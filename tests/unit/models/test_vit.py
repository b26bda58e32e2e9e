"""Backbones: normalisation, features, prompts, and counting of passes."""

from __future__ import annotations

from copy import deepcopy

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.zoo.shapes_vit import shapes_vit

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
KINDS = {
    "class token": {},
    "registers": {"reg_tokens": 3},
    "average pooling": {"global_pool": "avg", "class_token": False},
    "average pooling beside a class token": {"global_pool": "avg"},
    "pre-norm": {"pre_norm": True, "fc_norm": True},
    "no position of the class token": {"no_embed_class": True},
}
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def made(**settings):
    torch.manual_seed(0)
    vit = VisionTransformer(**{**SMALL, **settings})
    for parameter in vit.parameters():  # no zeros and ones, so that nothing can be left out unnoticed
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return ViTBackbone(vit, MEAN, STD).double().eval()


def normalised(images):
    mean, std = (torch.tensor(x, dtype=torch.double).view(3, 1, 1) for x in (MEAN, STD))
    return (images - mean) / std


def test_normalisation_is_the_first_operation_per_channel():
    images = torch.full((1, 3, 2, 2), 0.5)
    images[0, 1] = 0.6
    normalize = ViTBackbone(VisionTransformer(**SMALL), (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)).normalize
    torch.testing.assert_close(normalize(images)[0, :, 0, 0], torch.tensor([0.0, 1.0, 2.0]))
    torch.testing.assert_close(normalize(torch.full((1, 3, 2, 2), 0.75))[0, 0, 0, 0], torch.tensor(1.0))


@pytest.mark.parametrize("kind", KINDS)
class TestAVisionTransformer:
    def test_has_the_features_and_logits_of_timm(self, kind):
        backbone = made(**KINDS[kind])
        vit, x = backbone.vit, normalised(IMAGES)
        features = vit.forward_head(vit.forward_features(x), pre_logits=True)
        torch.testing.assert_close(backbone.features(IMAGES), features)
        torch.testing.assert_close(backbone.classify(features), vit(x))
        torch.testing.assert_close(backbone(IMAGES), vit(x))
        assert (backbone.feature_dim, backbone.num_classes) == (features.shape[1], 5)

    def test_has_prompts_between_prefix_and_patches_without_position(self, kind):
        backbone = made(**KINDS[kind])
        vit = backbone.vit
        prompt = torch.randn(3, backbone.prompt_dim, dtype=torch.double)
        tokens = vit._pos_embed(vit.patch_embed(normalised(IMAGES)))
        prefix = vit.num_prefix_tokens
        rows = torch.stack([torch.cat([t[:prefix], prompt, t[prefix:]]) for t in tokens])
        assert rows.shape[1] == prefix + 3 + 16
        out = vit.norm(vit.blocks(vit.norm_pre(rows)))
        patches = out[:, prefix + 3 :]
        pooled = patches.mean(dim=1) if vit.global_pool == "avg" else out[:, 0]
        torch.testing.assert_close(backbone.features(IMAGES, prompt), vit.fc_norm(pooled))

    def test_a_prompt_changes_features_and_gets_a_gradient(self, kind):
        backbone = made(**KINDS[kind])
        prompt = torch.randn(2, 16, dtype=torch.double, requires_grad=True)
        features = backbone.features(IMAGES, prompt)
        assert not torch.allclose(features, backbone.features(IMAGES))
        features.square().sum().backward()
        assert (prompt.grad.abs().sum(dim=1) > 0).all()

    def test_embeds_once_and_encodes_many_times(self, kind):
        backbone = made(**KINDS[kind])
        tokens = backbone.embed(IMAGES)
        torch.testing.assert_close(backbone.encode(tokens), backbone.features(IMAGES))


def test_images_of_a_batch_do_not_see_each_other():
    backbone, prompt = made(), torch.randn(2, 16, dtype=torch.double)
    torch.testing.assert_close(backbone.features(IMAGES, prompt)[1:2], backbone.features(IMAGES[1:2], prompt))


@pytest.mark.parametrize(
    ("vit", "patch_size", "tokens"),
    [
        (lambda: VisionTransformer(**SMALL), 8, 17),
        (lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1), 16, 17),
        (shapes_vit, 16, 17),
    ],
    ids=["patch 8", "patch 16", "convolutional stem"],
)
def test_the_patch_size_is_the_stride_of_the_tokens(vit, patch_size, tokens):
    network = vit()
    backbone = ViTBackbone(network, MEAN, STD)
    size = network.patch_embed.img_size[0]
    assert backbone.patch_size == patch_size
    assert backbone.image_size == size
    assert backbone.embed(torch.rand(1, 3, size, size)).tokens.shape[1] == tokens


def test_the_embedded_architecture_is_small():
    assert sum(p.numel() for p in shapes_vit().parameters()) == pytest.approx(1e6, rel=0.15)


def test_other_networks_are_refused():
    with pytest.raises(ValueError, match="expected a timm VisionTransformer, got Linear"):
        ViTBackbone(torch.nn.Linear(2, 2), MEAN, STD)


class TestTheMeter:
    def test_counts_every_image_that_goes_forward(self):
        backbone = made()
        backbone(IMAGES)
        backbone.features(IMAGES[:3])
        backbone.encode(backbone.embed(IMAGES[:1]))
        assert (backbone.meter.forward_samples, backbone.meter.backward_samples) == (8, 0)

    def test_does_not_count_embedding_and_classifying(self):
        backbone = made()
        backbone.embed(IMAGES)
        backbone.classify(torch.zeros(4, 16, dtype=torch.double))
        assert backbone.meter.forward_samples == 0

    def test_counts_every_image_whose_gradient_comes_back(self):
        backbone = made()
        backbone(IMAGES).square().sum().backward()
        assert (backbone.meter.forward_samples, backbone.meter.backward_samples) == (4, 4)

    def test_counts_selected_images_only(self):
        backbone = made()
        logits = backbone(IMAGES)
        logits[[0, 2, 3]].square().sum().backward()
        assert backbone.meter.backward_samples == 3
        weights = torch.tensor([0.0, 1.0, 0.0, 0.0])
        (backbone(IMAGES).square().sum(dim=1) * weights).sum().backward()
        assert backbone.meter.backward_samples == 4

    def test_counts_nothing_backward_without_gradients(self):
        backbone = made()
        with torch.no_grad():
            backbone(IMAGES)
        backbone(IMAGES)  # a graph that nobody goes back through
        assert (backbone.meter.forward_samples, backbone.meter.backward_samples) == (8, 0)

    def test_counts_a_second_way_back_through_the_same_pass(self):
        backbone = made()
        loss = backbone(IMAGES).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        assert (backbone.meter.forward_samples, backbone.meter.backward_samples) == (4, 8)

    def test_is_shared_by_copies(self):
        backbone = made()
        teacher = deepcopy(backbone)
        teacher(IMAGES)
        assert teacher.meter is backbone.meter
        assert backbone.meter.forward_samples == 4
        assert teacher.vit is not backbone.vit

    def test_is_no_part_of_the_weights(self):
        assert [name for name in made().state_dict() if not name.startswith("vit.")] == []


def with_prompt(tokens, prompt, start):
    return torch.cat([tokens[:, :start], prompt.expand(len(tokens), -1, -1), tokens[:, start:]], dim=1)


@pytest.mark.parametrize("kind", KINDS)
class TestLayersAndStages:
    """Against forward passes written out by hand; no two weights of these networks are alike."""

    @pytest.mark.parametrize("prompted", [False, True])
    def test_layers_are_the_first_tokens_through_the_next_norm(self, kind, prompted):
        backbone = made(**KINDS[kind], depth=3)
        vit, start = backbone.vit, backbone.vit.num_prefix_tokens
        prompt = torch.randn(2, 16, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        tokens = vit._pos_embed(vit.patch_embed(normalised(IMAGES)))
        tokens = vit.norm_pre(with_prompt(tokens, prompt, start) if prompted else tokens)
        after = []
        for block in vit.blocks:
            tokens = block(tokens)
            after.append(tokens[:, 0])
        norms = (vit.blocks[1].norm1, vit.blocks[2].norm1, vit.norm)
        layers = torch.stack([norm(x) for norm, x in zip(norms, after, strict=True)], dim=1)
        last = vit.norm(tokens)
        kept = torch.cat([last[:, :start], last[:, start + 2 :]], dim=1) if prompted else last
        pooled = vit.fc_norm(kept[:, 0] if vit.global_pool == "token" else kept[:, start:].mean(dim=1))

        features, found = backbone.encode_layers(backbone.embed(IMAGES), prompt if prompted else None)

        torch.testing.assert_close(found, layers)
        torch.testing.assert_close(features, pooled)

    def test_each_stage_has_its_own_blocks_and_prompts(self, kind):
        backbone = made(**KINDS[kind], depth=4)
        vit, start = backbone.vit, backbone.vit.num_prefix_tokens
        prompts = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(normalised(IMAGES))))
        tokens = vit.blocks[1](vit.blocks[0](with_prompt(tokens, prompts[0], start)))
        first = tokens[:, start : start + 3]
        tokens = torch.cat([tokens[:, :start], tokens[:, start + 3 :]], dim=1)
        tokens = vit.blocks[3](vit.blocks[2](with_prompt(tokens, prompts[1], start)))
        second = tokens[:, start : start + 3]
        tokens = vit.norm(torch.cat([tokens[:, :start], tokens[:, start + 3 :]], dim=1))
        pooled = vit.fc_norm(tokens[:, 0] if vit.global_pool == "token" else tokens[:, start:].mean(dim=1))

        features, outputs = backbone.encode_stages(backbone.embed(IMAGES), prompts)

        torch.testing.assert_close(outputs, torch.stack([first, second], dim=1))
        torch.testing.assert_close(features, pooled)
        with pytest.raises(ValueError, match="4 blocks cannot be split into 3 equal stages"):
            backbone.encode_stages(backbone.embed(IMAGES), torch.zeros(3, 1, 16).double())
