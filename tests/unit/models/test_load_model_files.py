"""Models from local files beyond timm's own layout: authors' names, .npz, torchvision, RobustBench, your own code."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from tta_bench.models.backbones.linear_head import LinearHeadBackbone
from tta_bench.models.loading.load_model import load_model, weights_sha256
from tta_bench.models.zoo import cifar_resnet

TAG = "test_vit.r160_in1k"  # timm's own model for tests: 6 blocks of width 64, 160 pixels, 1000 classes
SEEDED = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    model = timm.create_model("test_vit").eval()
    nn.init.normal_(model.head.weight, std=0.1)
    return model


def as_npz(vit):
    """The weights in the arrays of the authors of ViT: kernels transposed, queries, keys and values apart."""
    state, heads = {k: v.detach().numpy() for k, v in vit.state_dict().items()}, vit.blocks[0].attn.num_heads
    width = vit.embed_dim
    arrays = {
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "cls": state["cls_token"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    for i in range(len(vit.blocks)):
        ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
        attention = f"{theirs}MultiHeadDotProductAttention_1/"
        weights, biases = state[f"{ours}attn.qkv.weight"], state[f"{ours}attn.qkv.bias"]
        for j, part in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            arrays[f"{attention}{part}/kernel"] = weights[rows].T.reshape(width, heads, -1)
            arrays[f"{attention}{part}/bias"] = biases[rows].reshape(heads, -1)
        arrays[f"{attention}out/kernel"] = state[f"{ours}attn.proj.weight"].T.reshape(heads, -1, width)
        arrays[f"{attention}out/bias"] = state[f"{ours}attn.proj.bias"]
        for j, norm in ((0, "norm1"), (2, "norm2")):
            arrays[f"{theirs}LayerNorm_{j}/scale"] = state[f"{ours}{norm}.weight"]
            arrays[f"{theirs}LayerNorm_{j}/bias"] = state[f"{ours}{norm}.bias"]
        for j, layer in enumerate(("fc1", "fc2")):
            arrays[f"{theirs}MlpBlock_3/Dense_{j}/kernel"] = state[f"{ours}mlp.{layer}.weight"].T
            arrays[f"{theirs}MlpBlock_3/Dense_{j}/bias"] = state[f"{ours}mlp.{layer}.bias"]
    return arrays


class TestATagWithALocalFile:
    @pytest.mark.parametrize("kind", ["safetensors", "pth", "npz", "authors"])
    def test_has_the_weights_of_the_file_and_the_preprocessing_of_the_tag(self, vit, tmp_path, kind):
        state = vit.state_dict()
        path = tmp_path / f"w.{'pth' if kind == 'authors' else kind}"
        if kind == "safetensors":
            save_file(state, path)
        elif kind == "npz":
            np.savez(path, **as_npz(vit))
        else:  # OpenCLIP's name for the same, as an example of what timm converts
            torch.save({f"visual.trunk.{k}" if kind == "authors" else k: v for k, v in state.items()}, path)
        backbone = load_model(TAG, checkpoint=path)
        assert backbone.weights_sha256 == weights_sha256(state)
        assert (backbone.preprocess.profile, backbone.preprocess.mean) == ("timm", (0.5, 0.5, 0.5))
        images = torch.rand(1, 3, 160, 160, generator=SEEDED)
        torch.testing.assert_close(backbone(images), vit((images - 0.5) / 0.5))

    @pytest.mark.parametrize(
        ("key", "change", "message"),
        [
            ("cls", None, "missing cls"),
            ("head/bias", np.zeros(10, dtype=np.float32), "missing head.weight; missing head.bias"),
            (
                "Transformer/encoderblock_6/LayerNorm_0/scale",
                np.ones(64),
                "it holds 371304 numbers where the model has",
            ),
            ("Transformer/posembed_input/pos_embedding", np.zeros((1, 145, 64), np.float32), "numbers where the model"),
        ],
    )
    def test_an_npz_that_does_not_fit_names_the_difference(self, vit, tmp_path, key, change, message):
        arrays = as_npz(vit)
        if change is None:
            del arrays[key]
        else:
            arrays[key] = change
        np.savez(tmp_path / "w.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            load_model(TAG, checkpoint=tmp_path / "w.npz")

    @pytest.mark.parametrize("content", [b"", b"<html>404</html>"])
    def test_an_unreadable_npz_is_one_sentence(self, tmp_path, content):
        (tmp_path / "w.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"w\.npz is not a readable \.npz of a vision transformer"):
            load_model(TAG, checkpoint=tmp_path / "w.npz")

    def test_a_network_without_a_reader_of_npz_says_so(self, tmp_path):
        np.savez(tmp_path / "w.npz", a=[1.0])
        with pytest.raises(ValueError, match=r"timm cannot read a \.npz for ResNet"):
            load_model("test_resnet.r160_in1k", checkpoint=tmp_path / "w.npz")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"pos_embed": torch.zeros(1, 145, 64)}, r"pos_embed has shape \(1, 145, 64\) where the model has \(1, 10"),
            ({"head.bias": torch.zeros(10), "head.weight": torch.zeros(10, 64)}, r"head\.weight has shape \(10, 64\)"),
            ({"extra": torch.zeros(1)}, "unexpected extra"),
        ],
    )  # fmt: skip
    def test_nothing_is_resampled_or_left_out_without_a_word(self, vit, tmp_path, change, message):
        torch.save({**vit.state_dict(), **change}, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=message):
            load_model(TAG, checkpoint=tmp_path / "w.pth")

    def test_a_number_of_numpy_beside_the_weights_is_read(self, vit, tmp_path):
        torch.save({"net": vit.state_dict(), "best": np.float64(91.5), "epoch": np.int64(3)}, tmp_path / "w.pth")
        assert load_model(TAG, checkpoint=tmp_path / "w.pth").weights_sha256 == weights_sha256(vit.state_dict())


class TestTorchvision:
    @pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
    def test_a_model_by_name_computes_what_torchvision_does(self, name, tmp_path):
        torch.manual_seed(0)
        network = torchvision.models.get_model(name, weights=None).eval()
        torch.save(network.state_dict(), tmp_path / "w.pth")
        backbone = load_model(f"torchvision/{name}", checkpoint=tmp_path / "w.pth", preprocess="native")
        images = torch.rand(2, 3, 64, 64, generator=SEEDED)
        torch.testing.assert_close(backbone(images), network(images))
        assert backbone.features(images).shape == (2, backbone.feature_dim)
        assert (backbone.num_classes, backbone.weights_sha256) == (1000, weights_sha256(network.state_dict()))

    def test_its_preprocessing_is_that_of_its_published_weights(self, tmp_path):
        torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "w.pth")
        backbone = load_model("torchvision/resnet18", checkpoint=tmp_path / "w.pth")
        assert (backbone.preprocess.mean, backbone.preprocess.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        paper = load_model("torchvision/resnet18", checkpoint=tmp_path / "w.pth", preprocess="paper").preprocess
        assert (paper.mean, paper.resize) == ((0, 0, 0), (256, 224))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("torchvision/resnet18", r"torchvision/resnet18 is loaded from a file of yours: give model\.checkpoint"),
            ("torchvision/resnet19", "torchvision has no classifier 'resnet19'; did you mean 'resnet18'"),
            ("torchvision/fcn_resnet50", "torchvision has no classifier 'fcn_resnet50'"),
            ("torchvision/squeezenet1_0", "does not end in a linear layer"),
        ],
    )
    def test_what_cannot_be_loaded_is_one_sentence(self, name, message, tmp_path):
        state = torchvision.models.squeezenet1_0().state_dict() if "squeeze" in name else {}
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=message):
            load_model(name, checkpoint=None if "from a file" in message else tmp_path / "w.pth")


ROBUSTBENCH = """
import torch
from torch import nn


def load_model(model_name, model_dir="./models", dataset="cifar10", threat_model="Linf"):
    torch.manual_seed(len(model_name + dataset + threat_model))
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 8), nn.ReLU(), nn.Linear(8, 10))
"""


class TestRobustBench:
    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        """A stand-in with the one function that is called."""
        (tmp_path / "robustbench").mkdir()
        (tmp_path / "robustbench/__init__.py").write_text("")
        (tmp_path / "robustbench/utils.py").write_text(ROBUSTBENCH)
        monkeypatch.syspath_prepend(tmp_path)
        yield
        for name in ("robustbench", "robustbench.utils"):
            sys.modules.pop(name, None)

    def test_a_model_comes_with_its_weights_and_its_own_normalisation(self, package):
        backbone = load_model("robustbench/cifar10/corruptions/Standard")
        from robustbench.utils import load_model as theirs

        network = theirs(model_name="Standard", dataset="cifar10", threat_model="corruptions")
        images = torch.rand(2, 3, 64, 64, generator=SEEDED)
        torch.testing.assert_close(backbone(images), network(images))
        assert backbone.weights_sha256 == weights_sha256(network.state_dict())

    def test_mistakes_are_one_sentence(self, package):
        with pytest.raises(
            ValueError, match="should name data set, threat and model, as in robustbench/cifar10/Linf/Standard"
        ):
            load_model("robustbench/Standard")
        with pytest.raises(ValueError, match=r"comes with its weights: leave model\.checkpoint out"):
            load_model("robustbench/cifar10/Linf/Standard", checkpoint="w.pth")

    def test_without_the_package_the_remedy_is_named(self, monkeypatch):
        monkeypatch.setattr("tta_bench.models.loading.factories.find_spec", lambda name: None)
        with pytest.raises(ValueError, match="needs the package robustbench: pip install robustbench"):
            load_model("robustbench/cifar10/Linf/Standard")


OWN = """
from torch import nn


def network(width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


def not_a_network():
    return 3
"""


class TestOnesOwnCode:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "ownnets.py").write_text(OWN)
        monkeypatch.syspath_prepend(tmp_path)
        yield tmp_path
        sys.modules.pop("ownnets", None)

    def test_a_factory_named_in_the_description_builds_the_network(self, module):
        from ownnets import network

        torch.manual_seed(0)
        reference = network(width=6)
        torch.save(reference.state_dict(), module / "w.pth")
        (module / "card.yaml").write_text(
            "architecture: ownnets:network\nkwargs: {width: 6}\nmean: [0.1, 0.2, 0.3]\nstd: [1, 1, 1]"
        )
        backbone = load_model(checkpoint=module / "w.pth", config=module / "card.yaml")
        images = torch.rand(2, 3, 9, 9, generator=SEEDED)
        torch.testing.assert_close(backbone(images), reference(images - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)))
        with pytest.raises(ValueError, match="Sequential takes no prompts"):
            backbone.features(images, prompt=torch.zeros(1, 6))

    @pytest.mark.parametrize(
        ("architecture", "message"),
        [
            ("ownnets:networks", r"cannot import ownnets:networks .*is its folder on PYTHONPATH\?"),
            ("ownnetz:network", r"cannot import ownnetz:network .*is its folder on PYTHONPATH\?"),
            ("ownnets:not_a_network", "returned a int, not a torch.nn.Module"),
            ("ownnets:network\nkwargs: {depth: 3}", "ownnets:network rejects its kwargs.*'depth'"),
        ],
    )
    def test_a_wrong_factory_is_one_sentence(self, module, architecture, message):
        torch.save({}, module / "w.pth")
        (module / "card.yaml").write_text(f"architecture: {architecture}")
        with pytest.raises(ValueError, match=message):
            load_model(checkpoint=module / "w.pth", config=module / "card.yaml")


class TestLinearHeads:
    @pytest.mark.parametrize(
        "network",
        [
            nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Softmax(dim=1)),
            nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Linear(4, 3), nn.Unflatten(1, (3, 1))),
        ],
    )
    def test_scores_that_are_not_those_of_the_last_linear_layer_are_refused(self, network):
        network(torch.zeros(1, 3, 64, 64))
        with pytest.raises(ValueError, match="the scores of Sequential are not the output of its last linear layer"):
            LinearHeadBackbone(network, (0.0,) * 3, (1.0,) * 3)


class TestResidualNetworksForCifar:
    def test_have_the_published_numbers_of_parameters(self):
        """He et al., CVPR 2016, Table 6: 0.27, 0.46, 0.66 and 0.85 million."""
        sizes = [sum(p.numel() for p in cifar_resnet.cifar_resnet(depth).parameters()) for depth in (20, 32, 44, 56)]
        assert [round(size / 1e6, 2) for size in sizes] == [0.27, 0.46, 0.66, 0.85]

    def test_a_shortcut_skips_pixels_and_puts_zeros_on_both_sides(self):
        block = cifar_resnet.Block(2, 4, 2).eval()
        nn.init.zeros_(block.bn2.weight)
        x = torch.randn(1, 2, 4, 4, generator=SEEDED)
        expected = torch.cat([torch.zeros(1, 1, 2, 2), x[:, :, ::2, ::2], torch.zeros(1, 1, 2, 2)], dim=1)
        assert torch.equal(block(x), expected.relu())

    def test_a_block_before_activation_averages_the_shortcut_and_puts_zeros_behind(self):
        block = cifar_resnet.PreActBlock(2, 4, 2, groups=2).eval()
        nn.init.zeros_(block.conv2.weight)
        x = torch.randn(1, 2, 4, 4, generator=SEEDED)
        expected = torch.cat([F.avg_pool2d(x, 2), torch.zeros(1, 2, 2, 2)], dim=1)
        torch.testing.assert_close(block(x), expected)

    @pytest.mark.parametrize("make", [cifar_resnet.cifar_resnet, cifar_resnet.preact_cifar_resnet])
    def test_another_depth_is_one_sentence(self, make):
        with pytest.raises(ValueError, match=r"depth of 6n \+ 2, such as 20, 26, 32 or 56; got 18"):
            make(depth=18)

    def test_old_files_without_the_counters_of_batch_norm_are_read(self, tmp_path):
        state = cifar_resnet.cifar_resnet(8).state_dict()
        torch.save({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path / "w.pth")
        card = "architecture: tta_bench.models.zoo.cifar_resnet:cifar_resnet\nkwargs: {depth: 8}"
        (tmp_path / "card.yaml").write_text(card)
        backbone = load_model(checkpoint=tmp_path / "w.pth", config=tmp_path / "card.yaml")
        assert backbone.weights_sha256 == weights_sha256(state)
        assert backbone(torch.rand(2, 3, 32, 32, generator=SEEDED)).shape == (2, 10)
