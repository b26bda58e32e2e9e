"""torch.compile of the passes of a network."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.helpers.tiny_vit import golden_backbone, golden_batches, load_trace
from tta_bench import load_model
from tta_bench.methods import DPCore, Tent
from tta_bench.models.backbones.linear_head import LinearHeadBackbone
from tta_bench.models.compilation import Compilation
from tta_bench.models.loading.load_model import wrap
from tta_bench.models.preprocess import Preprocess
from tta_bench.testing import toy_backbone

# Not ours: dynamo looks at every gradient. Torch hides the warning, pytest shows it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def count():
    counters.clear()
    return lambda: counters["stats"]["unique_graphs"]


def compiled(backbone, batch_size=2, backend="eager"):
    backbone.compilation = Compilation("default", backend)
    backbone.compilation.begin(batch_size)
    return backbone


def test_only_batches_of_the_first_size_are_compiled(count):
    backbone, images = compiled(toy_backbone()), torch.rand(3, 3, 16, 16)
    backbone(images)
    assert count() == 0
    backbone(images[:2])
    backbone.compilation.begin(3)  # a stream goes on
    backbone(images)
    assert count() == 3


def test_shapes_are_static():
    """CUDA graphs are recorded for one shape."""
    given = []

    def backend(graph, inputs):
        given.extend(inputs)
        return graph

    compiled(toy_backbone(), backend=backend)(torch.rand(2, 3, 16, 16))
    sizes = [size for tensor in given if isinstance(tensor, torch.Tensor) for size in tensor.shape]
    assert sizes
    assert not [size for size in [*sizes, *given] if isinstance(size, torch.SymInt)]


def test_nothing_is_compiled_before_the_stream(count):
    method = Tent(toy_backbone())
    method.backbone.compilation = Compilation("default", "eager")
    method.backbone(torch.rand(2, 3, 16, 16))
    assert count() == 0
    method(torch.rand(2, 3, 16, 16))
    assert count() == 3


def test_a_copy_with_other_weights_shares_graphs_but_not_weights(count):
    backbone, images = compiled(toy_backbone()), torch.rand(2, 3, 16, 16)
    teacher = copy.deepcopy(backbone)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.1)
        ours, theirs, graphs = backbone(images), teacher(images), count()
        backbone.compilation.batch_size = None
        torch.testing.assert_close(ours, backbone(images), rtol=0, atol=0)
        torch.testing.assert_close(theirs, teacher(images), rtol=0, atol=0)
    assert graphs == 3


def test_a_renewed_compilation_awaits_its_own_stream():
    renewed = compiled(toy_backbone()).compilation.renewed()
    assert (renewed.mode, renewed.backend, renewed.batch_size) == ("default", "eager", None)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_tent_follows_its_trace(backend, count):
    trace = load_trace("tent_trace")
    method = Tent(compiled(golden_backbone(trace), 16, backend), lr=0.1, nesterov=False).double()
    scores = [method(images) for images in golden_batches()]
    torch.testing.assert_close(torch.stack(scores), torch.from_numpy(trace["logits"]), rtol=0, atol=1e-9)
    assert count() == 3


@pytest.mark.slow
def test_dpcore_has_the_numbers_and_decisions_of_eager_passes(count):
    plain, other = (DPCore(golden_backbone(), num_source=32, steps_new=10, rho=0.9).double() for _ in range(2))
    compiled(other.backbone, 16, "inductor")
    scores = []
    for method in (plain, other):
        method.fit_source(golden_batches()[:2])
        scores.append(torch.stack([method(images) for images in golden_batches()]))
    torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=1e-9)
    assert 1 < len(other.coreset) < 14  # new and known batches
    assert count() == 4


class Branches(nn.Module):
    """Looks at its numbers, which no graph can."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, images):
        pooled = images.mean(dim=(2, 3))
        return self.head(pooled if pooled.sum() > 0 else -pooled)


def test_a_network_that_cannot_be_compiled_is_one_sentence():
    backbone = compiled(LinearHeadBackbone(Branches(), (0.5,) * 3, (0.5,) * 3))
    with pytest.raises(RuntimeError, match=r"^torch cannot compile the network \(.+\): set model\.compile=off$"):
        backbone(torch.rand(2, 3, 16, 16))


@pytest.mark.parametrize("network", ["resnet18", "convnext_atto"])
def test_convolutional_networks_are_compiled(network, count):
    backbone = wrap(timm.create_model(network, num_classes=4).eval(), Preprocess("own", (0.5,) * 3, (0.5,) * 3))
    images = torch.rand(2, 3, 32, 32)
    expected = backbone(images)
    torch.testing.assert_close(compiled(backbone)(images), expected)
    assert count() == 3


def test_a_missing_compiler_is_one_sentence(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = "compile=default needs the C++ compiler no-such-compiler, which is missing: install it or set CXX"
    with pytest.raises(ValueError, match=f"^{message.replace('+', '[+]')}$"):
        load_model("shapes_vit", compile="default")
    assert load_model("shapes_vit").compilation.mode == "off"


def test_a_wrong_mode_names_the_nearest():
    message = r"no mode 'reduce_overhead'; did you mean 'reduce-overhead'\? choose from: off"
    with pytest.raises(ValueError, match=message):
        load_model("shapes_vit", compile="reduce_overhead")
