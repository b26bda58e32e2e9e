"""Which methods run on which family of networks: the table of the README, on small networks of random weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import timm
import torch

from tests.helpers.methods import FAST
from tta_bench.methods import METHODS
from tta_bench.models.loading.load_model import wrap
from tta_bench.models.preprocess import Preprocess
from tta_bench.types import SourceNeed

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2)}
WITHOUT_TOKENS = {"cmae", "dept", "foa", "vida"}
# Family: network, its arguments, and the methods that refuse it.
FAMILIES = {
    "ViT": ("vit_tiny_patch16_224", VIT, {"bn_adapt"}),
    "distilled DeiT": ("deit_tiny_distilled_patch16_224", VIT, {"bn_adapt", "dept"}),
    "Swin": ("swin_tiny_patch4_window7_224", SWIN, {"bn_adapt", "ecotta", *WITHOUT_TOKENS}),
    "ConvNeXt": (
        "convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}, {"bn_adapt", "ecotta", *WITHOUT_TOKENS},
    ),
    "ResNet with batch norm": ("resnet10t", {}, WITHOUT_TOKENS),
    "ResNet with group norm": ("resnet50_gn", {"layers": (1, 1, 1, 1)}, {"bn_adapt", *WITHOUT_TOKENS}),
    "MobileNet": ("mobilenetv3_small_050", {}, {"ecotta", "petta", "rotta", *WITHOUT_TOKENS}),
}  # fmt: skip
IMAGES = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def backbone_of(name, arguments):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = timm.create_model(name, num_classes=4, **arguments)
        for module in network.modules():  # as training leaves them
            if isinstance(weight := getattr(module, "weight", None), torch.Tensor) and weight.ndim == 1:
                torch.nn.init.normal_(weight, 1.0, 0.2)
    return wrap(network.eval(), Preprocess("own", (0.5,) * 3, (0.25,) * 3)).eval()


def runs(cls, backbone, settings):
    """Whether a method adapts to two batches; it may refuse a network, with a sentence, when it is set up."""
    try:
        method = cls(backbone, **settings)
        method.configure_model()
    except ValueError:
        return False
    if cls.source_need is not SourceNeed.NOTHING:
        labelled = cls.source_need is SourceNeed.LABELED
        method.fit_source([(IMAGES, torch.arange(8) % 4) if labelled else IMAGES] * 5)
    for _ in range(2):
        assert method(IMAGES).shape == (8, 4)
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_runs_or_refuses_before_the_stream(family):
    name, arguments, refusing = FAMILIES[family]
    backbone = backbone_of(name, arguments)
    found = {m for m, cls in METHODS.items() if not runs(cls, copy.deepcopy(backbone), FAST.get(m, {}))}
    assert found == refusing


def test_the_readme_says_the_same():
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    for family, (_, _, refusing) in FAMILIES.items():
        assert f"| {family} | {', '.join(f'`{name}`' for name in sorted(refusing))} |" in readme
