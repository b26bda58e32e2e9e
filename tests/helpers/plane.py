"""A backbone whose features are its inputs, and DPCore on it: numbers that can be checked by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_bench.methods import DPCore
from tta_bench.models.backbones.base import Backbone

WIDTH = 4


class Plane(Backbone):
    """A backbone whose features are its inputs, shifted by the mean of the prompt."""

    feature_dim = prompt_dim = num_classes = WIDTH

    def __init__(self) -> None:
        super().__init__((0.0,), (1.0,))
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.double()

    def prepare(self, images: Tensor) -> Tensor:
        return images  # points of the plane, not pixels

    def _embed(self, images: Tensor) -> Tensor:
        return images.flatten(1)

    def _encode(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        return tokens if prompt is None else tokens + prompt.mean(dim=0)

    def classify(self, features: Tensor) -> Tensor:
        return features


def method(**settings):
    built = DPCore(Plane(), **{"prompt_length": 1, "steps_new": 2, "num_source": 4, **settings})
    built.double().configure_model()
    built.load_source_state(
        {
            "initial_prompt": torch.zeros(built.hparams.prompt_length, WIDTH).double(),
            "source_mean": torch.zeros(WIDTH).double(),
            "source_std": torch.ones(WIDTH).double(),
            "source_spread": torch.tensor(2 * (1 + 1 / math.sqrt(2))).double(),  # of WIDTH = 4 standard deviations of 1
        }
    )
    return built


def images_with(mean: float, std: float = 1.0) -> torch.Tensor:
    """Four images whose features have the given mean and unbiased standard deviation in every dimension."""
    values = torch.tensor([-1.0, 1.0, -1.0, 1.0]).double() * std * math.sqrt(3) / 2 + mean
    return values[:, None].expand(4, WIDTH).reshape(4, 1, 1, WIDTH)


def element(built, mean, std, prompt):
    """Append a coreset element with constant entries."""
    row = torch.full((1, WIDTH), 1.0).double()
    built.coreset.mean = torch.cat([built.coreset.mean, mean * row])
    built.coreset.std = torch.cat([built.coreset.std, std * row])
    built.coreset.prompt = torch.cat([built.coreset.prompt, prompt * row[None]])
