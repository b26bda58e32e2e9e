"""Loading backbones by name or file, and one sentence for each possible mistake."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from tta_bench.datasets.procedural.scenes import render
from tta_bench.models.loading import load_model as loading
from tta_bench.models.loading.load_model import load_model, weights_sha256

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 5}
CARD = f"architecture: vit_tiny_patch16_224\nkwargs: {TINY}\nmean: [0.5, 0.4, 0.3]\nstd: [0.25, 0.2, 0.1]\n".replace(
    "'", ""
)


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **TINY).state_dict()


@pytest.fixture
def card(tmp_path):
    (tmp_path / "card.yaml").write_text(CARD)
    return tmp_path / "card.yaml"


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_local_model_computes_what_its_network_computes(tmp_path, card, state):
    save_file(state, tmp_path / "w.safetensors")
    backbone = load_model(checkpoint=tmp_path / "w.safetensors", config=card)
    vit = timm.create_model("vit_tiny_patch16_224", **TINY).eval()
    vit.load_state_dict(state)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.25, 0.2, 0.1]).view(3, 1, 1)
    torch.testing.assert_close(backbone(IMAGES), vit((IMAGES - mean) / std))
    assert (backbone.training, backbone.dtype, backbone.num_classes) == (False, torch.float32, 5)
    assert backbone.weights_sha256 == weights_sha256(state)


@pytest.mark.parametrize("suffix", ["pt", "pth", "th"])
@pytest.mark.parametrize("key", [None, "state_dict", "model", "net"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_torch_checkpoint_is_read_in_its_usual_wrappings(tmp_path, card, state, suffix, key, prefix):
    wrapped = {f"{prefix}{name}": value for name, value in state.items()}
    torch.save({key: wrapped, "epoch": 3} if key else wrapped, tmp_path / f"w.{suffix}")
    assert load_model(checkpoint=tmp_path / f"w.{suffix}", config=str(card)).weights_sha256 == weights_sha256(state)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_half_precision_weights_become_float32(tmp_path, card, state, suffix):
    half = {name: value.half() for name, value in state.items()}
    path = tmp_path / f"w.{suffix}"
    save_file(half, path) if suffix == "safetensors" else torch.save(half, path)
    backbone = load_model(checkpoint=path, config=card)
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    assert torch.equal(backbone.vit.head.weight, half["head.weight"].float())


def test_mean_and_std_can_be_overridden(tmp_path, card, state):
    save_file(state, tmp_path / "w.safetensors")
    backbone = load_model(checkpoint=tmp_path / "w.safetensors", config=card, mean=[0, 0, 0], std=[1, 1, 1])
    torch.testing.assert_close(backbone.normalize(IMAGES), IMAGES)


def damage(name, state, path):
    """Write a checkpoint with one defect; return what the message must say."""
    changed = dict(state)
    if name == "missing key":
        del changed["head.bias"]
        expected = "missing head.bias"
    elif name == "unexpected key":
        changed["extra"] = torch.zeros(1)
        expected = "unexpected extra"
    elif name == "wrong shape":
        changed["head.bias"] = torch.zeros(7)
        expected = r"head.bias has shape \(7,\) where the model has \(5,\)"
    elif name == "many problems":
        changed = {f"x{k}": v for k, v in state.items()}
        expected = "missing .* and 17 more; unexpected .* and 17 more"
    else:
        changed, expected = {"state_dict": {"a": 1}}, "no state dict of tensors"
    torch.save(changed, path)
    return expected


@pytest.mark.parametrize("defect", ["missing key", "unexpected key", "wrong shape", "many problems", "no tensors"])
def test_weights_that_do_not_fit_name_the_difference(tmp_path, card, state, defect):
    path = tmp_path / "w.pth"
    expected = damage(defect, state, path)
    with pytest.raises(ValueError, match=expected) as caught:
        load_model(checkpoint=path, config=card)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < 600
    assert "\n" not in message


@pytest.mark.parametrize(
    "defect", ["web page", "empty", "truncated pth", "truncated safetensors", "web page safetensors"]
)
def test_an_unreadable_checkpoint_is_one_sentence(tmp_path, card, state, defect):
    path = tmp_path / ("w.safetensors" if "safetensors" in defect else "w.pth")
    if "web page" in defect:
        path.write_text("<!DOCTYPE html><html>404</html>")
    elif defect == "empty":
        path.write_bytes(b"")
    else:
        save_file(state, path) if "safetensors" in defect else torch.save(state, path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"^{path} is not a readable checkpoint of tensors only") as caught:
        load_model(checkpoint=path, config=card)
    assert "\n" not in str(caught.value)


def test_a_pickled_object_is_never_executed(tmp_path, card):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("executed").touch, ())

    torch.save({"a": Evil()}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="tensors"):
        load_model(checkpoint=tmp_path / "w.pth", config=card)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kwargs: {}", "must name an architecture"),
        ("- a list", "must name an architecture"),
        (
            "architecture: vit_tiny_patch16_224\nnormalise: 1",
            "unknown key 'normalise'; known are architecture, kwargs, mean, std",
        ),
        ("architecture: vit_tinny_patch16_224", "'vit_tinny_patch16_224'; did you mean 'vit_tiny_patch16_224'"),
        ("architecture: shapes_vitt", "did you mean 'shapes_vit'"),
        ("architecture: vit_tiny_patch16_224\nkwargs: {widht: 3}", "vit_tiny_patch16_224 rejects its kwargs.*'widht'"),
        ("architecture: resnet18\nkwargs: {num_classes: 0}", "no linear classifier"),
    ],
)
def test_a_wrong_description_is_one_sentence(tmp_path, text, message):
    (tmp_path / "card.yaml").write_text(text)
    network = timm.create_model("resnet18", num_classes=0).state_dict() if "resnet" in text else {}
    torch.save(network, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=message) as caught:
        load_model(checkpoint=tmp_path / "w.pth", config=tmp_path / "card.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"set model\.name, or model\.checkpoint together with model\.config"),
        ({"config": "card.yaml"}, r"card\.yaml describes a model without weights: give model\.checkpoint"),
        ({"name": "vit_base_patch16_224"}, r"does not say which weights; use one of: .*augreg2_in21k_ft_in1k"),
        ({"name": "vit_base_patch16_224.foo"}, r"no weights 'vit_base_patch16_224\.foo'; use one of: .*augreg"),
        ({"name": "vit_basee_patch16_224"}, "did you mean 'vit_base_patch16_224'"),
        ({"name": "vit_tiny"}, "did you mean 'vit_tiny"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_the_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_model(**arguments)


@pytest.mark.parametrize("missing", ["checkpoint", "config"])
def test_a_missing_file_is_named(tmp_path, card, state, missing):
    paths = {"checkpoint": tmp_path / "w.pth", "config": card}
    torch.save(state, paths["checkpoint"])
    paths[missing].unlink()
    with pytest.raises(FileNotFoundError, match=rf"^model\.{missing}={paths[missing]} does not exist$"):
        load_model(**paths)


def test_weights_that_cannot_be_downloaded_name_the_remedy(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("no route to host\nand more lines")

    monkeypatch.setattr(loading.timm, "create_model", offline)
    with pytest.raises(ValueError, match=r"go online once, or set model\.checkpoint") as caught:
        load_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert "\n" not in str(caught.value)


class TestTheHash:
    def test_does_not_depend_on_the_order(self, state):
        assert weights_sha256(dict(reversed(state.items()))) == weights_sha256(state)

    def test_changes_with_the_last_bit_of_one_weight(self, state):
        bias = state["head.bias"].clone()
        bias[2] = torch.nextafter(bias[2], torch.tensor(9.0))
        assert weights_sha256({**state, "head.bias": bias}) != weights_sha256(state)

    @pytest.mark.parametrize("change", [lambda t: t.double(), lambda t: t[None], lambda t: t.flip(0)])
    def test_changes_with_type_shape_and_place(self, state, change):
        bias = torch.arange(5.0)
        assert weights_sha256({"b": change(bias)}) != weights_sha256({"b": bias})

    def test_changes_with_a_name(self):
        assert weights_sha256({"a": torch.ones(2)}) != weights_sha256({"b": torch.ones(2)})

    def test_does_not_depend_on_memory_layout(self):
        square = torch.arange(9.0).view(3, 3)
        assert weights_sha256({"a": square.T.contiguous().T}) == weights_sha256({"a": square})


def test_the_embedded_model_needs_no_network():
    backbone = load_model("shapes_vit")
    assert backbone(torch.rand(2, 3, 64, 64)).shape == (2, 10)
    assert len(backbone.weights_sha256) == 64


def test_the_source_model_of_the_scenes_knows_most_of_their_clean_images():
    backbone = load_model("scenes_vit")
    images = torch.stack([torch.from_numpy(render("test", i)).permute(2, 0, 1) for i in range(100)]) / 255
    with torch.no_grad():
        wrong = (backbone(images).argmax(dim=1) != torch.arange(100) % 20).sum().item()
    assert wrong <= 20


def test_a_residual_network_is_a_backbone_without_prompts(tmp_path):
    network = timm.create_model("resnet10t", num_classes=3).eval()
    torch.save(network.state_dict(), tmp_path / "w.pth")
    (tmp_path / "card.yaml").write_text("architecture: resnet10t\nkwargs: {num_classes: 3}\n")
    backbone = load_model(checkpoint=tmp_path / "w.pth", config=tmp_path / "card.yaml")
    images = torch.rand(2, 3, 64, 64)
    assert (backbone.num_classes, backbone.prompt_dim, backbone.feature_dim) == (3, None, 512)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), network(images))
    with pytest.raises(ValueError, match="ResNet takes no prompts; use a vit_"):
        backbone.features(images, prompt=torch.zeros(1, 8))


def save_random(network, folder, architecture, kwargs):
    """Save a network whose weights are all random; heads and norms too."""
    generator = torch.Generator().manual_seed(0)
    state = {k: torch.randn(v.shape, generator=generator) * 0.3 for k, v in network.state_dict().items()}
    network.load_state_dict(state)
    save_file(state, folder / "w.safetensors")
    (folder / "card.yaml").write_text(f"architecture: {architecture}\nkwargs: {kwargs}\n".replace("'", ""))
    return {"checkpoint": folder / "w.safetensors", "config": folder / "card.yaml"}


class TestScoresAreTheNetworksOwn:
    def test_a_distilled_transformer_has_the_mean_of_two_heads(self, tmp_path):
        network = timm.create_model("deit_tiny_distilled_patch16_224", **TINY).eval()
        backbone = load_model(**save_random(network, tmp_path, "deit_tiny_distilled_patch16_224", TINY))
        with torch.no_grad():
            torch.testing.assert_close(backbone(IMAGES), network(IMAGES))
            assert backbone.features(IMAGES).shape == (2, backbone.feature_dim)
            prompted = backbone.features(IMAGES, prompt=torch.ones(3, backbone.prompt_dim))
        assert not torch.allclose(prompted, backbone.features(IMAGES))

    @pytest.mark.parametrize("pool", ["token", "avg"])
    def test_any_pooling_of_a_transformer_is_followed(self, tmp_path, pool):
        kwargs = {**TINY, "global_pool": pool}
        network = timm.create_model("vit_tiny_patch16_224", **kwargs).eval()
        backbone = load_model(**save_random(network, tmp_path, "vit_tiny_patch16_224", kwargs))
        with torch.no_grad():
            torch.testing.assert_close(backbone(IMAGES), network(IMAGES))

    def test_a_network_that_does_more_is_refused(self, tmp_path, monkeypatch):
        network = timm.create_model("vit_tiny_patch16_224", **TINY)
        paths = save_random(network, tmp_path, "vit_tiny_patch16_224", TINY)
        own = type(network).forward
        monkeypatch.setattr(type(network), "forward", lambda self, images: own(self, images).softmax(dim=1))
        with pytest.raises(ValueError, match="does more than pool its features and score them with one linear layer"):
            load_model(**paths)

    def test_images_that_are_not_square_are_refused_when_the_model_is_loaded(self, tmp_path):
        kwargs = {**TINY, "img_size": [32, 64]}
        network = timm.create_model("vit_tiny_patch16_224", **kwargs)
        with pytest.raises(ValueError, match="takes images of 32x64 pixels, but only square ones are supported"):
            load_model(**save_random(network, tmp_path, "vit_tiny_patch16_224", kwargs))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (
            [123.675, 116.28, 103.53],
            [58.395, 57.12, 57.375],
            r"mean .* 0\.\.255.*divide mean and std by",
        ),
        ([0.5, 0.5, 0.5], [127.5, 127.5, 127.5], r"std .* is for images in 0\.\.255"),
        ([0.5, 0.5, 0.5], None, "belong together"),
        (None, [0.5, 0.5, 0.5], "belong together"),
        ([0.5, 0.5, 0.5], [0.5, 0, 0.5], "std must be positive"),
        ([0.5, 0.5], [0.5, 0.5], "mean must be three numbers"),
        ([0.5, 0.5, 0.5], [0.5], "std must be three numbers"),
        ([0.5, -0.1, 0.5], [0.5, 0.5, 0.5], r"mean must be in \[0, 1\]"),
        ([0.5, float("nan"), 0.5], [0.5, 0.5, 0.5], "mean must be three numbers"),
    ],
)
@pytest.mark.parametrize("place", ["words", "card"])
def test_a_wrong_normalisation_is_one_sentence(tmp_path, card, state, mean, std, message, place):
    save_file(state, tmp_path / "w.safetensors")
    words = {"mean": mean, "std": std}
    if place == "card":
        lines = [f"{key}: {value}".replace("nan", ".nan") for key, value in words.items() if value is not None]
        card.write_text("\n".join([*CARD.splitlines()[:2], *lines]))
        words = {}
    with pytest.raises(ValueError, match=message):
        load_model(checkpoint=tmp_path / "w.safetensors", config=card, **words)
