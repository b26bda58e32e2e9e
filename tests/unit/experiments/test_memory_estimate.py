"""Memory estimates of methods, compared with sums by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tta_bench.experiments.memory_estimate import estimate_memory
from tta_bench.methods import Source
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.linear_head import LinearHeadBackbone

IMAGE = torch.zeros(1, 3, 4, 4)  # 48 numbers
HIDDEN, CLASSES = 10, 5
WEIGHTS = (48 + 1) * HIDDEN + (HIDDEN + 1) * CLASSES


class Learning(Source):
    """Learns all weights, or a number beside them."""

    def __init__(self, backbone, optimizer, *, inside=True):
        super().__init__(backbone)
        self.make, self.inside = optimizer, inside

    def configure_adaptation(self):
        self.backbone.requires_grad_(self.inside)
        if not self.inside:
            self.extra = nn.Parameter(torch.zeros(1))

    def configure_optimizers(self):
        return self.make([p for p in self.parameters() if p.requires_grad])


@pytest.fixture
def backbone(monkeypatch) -> Backbone:
    monkeypatch.setattr("tta_bench.models.backbones.linear_head.ANY_SIZE", 4)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    return LinearHeadBackbone(network, (0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 1),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2),
        (lambda p: torch.optim.Adam(p, lr=0.1), 3),
    ],
)
def test_training_takes_gradients_and_moments(backbone, optimizer, copies):
    needed = estimate_memory(Learning(backbone, optimizer), IMAGE, 8)
    assert needed.training == 4 * WEIGHTS * copies
    assert needed.weights == 4 * (WEIGHTS + 6)  # and mean and standard deviation
    assert needed.activations == 8 * 4 * (48 + HIDDEN)  # what each layer saw; the ReLU keeps what the next one sees
    assert needed.total == needed.weights + needed.training + needed.activations


def test_what_is_learned_beside_the_network_needs_the_gradient_through_it(backbone):
    needed = estimate_memory(Learning(backbone, lambda p: torch.optim.SGD(p, lr=0.1), inside=False), IMAGE, 1)
    assert needed.training == 4
    assert needed.activations == 4 * HIDDEN  # of the ReLU; frozen layers keep no inputs


def test_without_learning_the_largest_layer_counts(backbone):
    needed = estimate_memory(Source(backbone), IMAGE, 2)
    assert (needed.training, needed.activations) == (0, 2 * 4 * (48 + 48))  # flattening: input and output


def test_a_copy_of_the_network_counts(backbone):
    class Teacher(Learning):
        def configure_adaptation(self):
            self.add_copy("teacher")

    needed = estimate_memory(Teacher(backbone, lambda p: torch.optim.SGD(p, lr=0.1)), IMAGE, 1)
    assert needed.weights == 2 * 4 * (WEIGHTS + 6)


def test_it_is_told_in_readable_units():
    from tta_bench.experiments.memory_estimate import Memory

    told = str(Memory(1_500_000_000, 2_000_000, 300_000))
    assert told == "1.5 GB (weights 1.5 GB, training 2 MB, activations 0 MB)"
