"""Every registered method works with other networks, other numbers of classes and long streams."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.methods import FAST, distilled_backbone
from tta_bench import testing
from tta_bench.methods import METHODS
from tta_bench.testing.checks import check_memory_is_flat
from tta_bench.types import SourceNeed

NETWORKS = {
    "batch norm": lambda: testing.toy_cnn("batch"),
    "group norm": lambda: testing.toy_cnn("group"),
    "2 classes": lambda: testing.toy_backbone(num_classes=2),
    "1000 classes": lambda: testing.toy_backbone(num_classes=1000),
    "two heads": distilled_backbone,
}
# Methods that work on tokens or prompts, or on batch norm; everything else must run on a convolutional network.
NEEDS_TRANSFORMER = {"cmae", "dept", "foa", "vida"}
NEEDS_BATCH_NORM = {"bn_adapt"}
NEEDS_ONE_TOKEN = {"dept"}  # as a feature


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", list(METHODS))
def test_other_networks(name, network):
    transformer = "norm" not in network
    settings = FAST.get(name, {})
    if name == "santa" and network == "1000 classes":
        settings = {"num_source": 1000}  # prototypes need an image of every class
    method = METHODS[name](NETWORKS[network](), **settings)
    if (
        (name in NEEDS_TRANSFORMER and not transformer)
        or (name in NEEDS_BATCH_NORM and network != "batch norm")
        or (name in NEEDS_ONE_TOKEN and network == "two heads")
    ):
        with pytest.raises(ValueError, match="need"):
            method.configure_model()
        return
    method.configure_model()
    if method.source_need is not SourceNeed.NOTHING:
        batches = list(testing.toy_data().source_dataloader(method.source_need, batch_size=16))
        classes = method.backbone.num_classes
        if method.source_need is SourceNeed.LABELED:  # one image of every class at least
            images = torch.cat([images for images, _ in batches])
            labels = torch.arange(max(classes, len(images)))
            batches = list(zip(images[labels % len(images)].split(64), (labels % classes).split(64), strict=True))
        method.fit_source(batches)
    for size in (8, 1, 8, 3, 8):
        scores = method.forward_and_adapt(testing.batches(1, batch_size=size, seed=size)[0])
        assert scores.shape == (size, method.backbone.num_classes)
        assert torch.isfinite(scores).all()
    for key, value in method.state_dict().items():
        assert torch.isfinite(value).all(), key


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_memory_is_flat_over_2000_batches(name):
    network = testing.toy_cnn("batch") if name in NEEDS_BATCH_NORM else testing.toy_backbone()
    check_memory_is_flat(lambda: METHODS[name](network, **FAST.get(name, {})), last=2000)
