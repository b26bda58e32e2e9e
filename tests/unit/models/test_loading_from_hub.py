"""Networks that a folder or a function describes, rather than a name of timm's."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from tta_bench.models.loading.load_model import load_model

KWARGS = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224", num_classes=4, **KWARGS).eval()
    torch.nn.init.normal_(made.norm.weight, 1.0, 0.3)
    torch.nn.init.normal_(made.head.weight)
    return made


def test_a_folder_as_the_hub_has_it(network, tmp_path):
    told = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 16, 16], "num_classes": 4}
    config = {
        "architecture": "vit_tiny_patch16_224", "num_classes": 4, "pretrained_cfg": told, "model_args": KWARGS,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    backbone = load_model(f"local-dir:{tmp_path}")
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(told[key]).view(3, 1, 1) for key in ("mean", "std"))
    assert torch.allclose(backbone(images), network((images - mean) / std))
    assert (backbone.num_classes, backbone.image_size) == (4, 16)


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^model\.name=local-dir:.* and .*config\.json is missing$"):
        load_model(f"local-dir:{tmp_path}")
    (tmp_path / "config.json").write_text('{"architecture": "no_such_network", "num_classes": 4}')
    with pytest.raises(ValueError, match=r"^timm cannot load local-dir:[^:']*: \w"):
        load_model(f"local-dir:{tmp_path}")
    with pytest.raises(ValueError, match="comes with its weights"):
        load_model("hf-hub:owner/model", checkpoint="w.safetensors")


def test_a_model_that_cannot_be_downloaded_is_one_sentence(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("[Errno -2] Name or service not known")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ValueError, match=r"^the weights of hf-hub:owner/model are not on this machine"):
        load_model("hf-hub:owner/model")


def test_a_function_makes_the_network_and_a_file_its_weights(network, tmp_path, monkeypatch):
    (tmp_path / "my_nets_18.py").write_text(
        f"import timm\ndef tiny():\n    return timm.create_model('vit_tiny_patch16_224', num_classes=4, **{KWARGS})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    backbone = load_model("my_nets_18:tiny", checkpoint=tmp_path / "w.safetensors")
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(backbone(images), network(images))
    with pytest.raises(ValueError, match="makes a network without weights"):
        load_model("my_nets_18:tiny")
