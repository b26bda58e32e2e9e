"""FOA: forward-optimization adaptation, test-time adaptation without gradients (Niu et al., ICML 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from tta_bench.functional import batch_statistics, softmax_entropy
from tta_bench.functional.cma_es import SearchState, evolve, initial_search, sample
from tta_bench.functional.entropy import at_least_float32
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.source_images import take_source_images
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.types import PredictionTiming, SourceNeed

REFERENCE_BATCH = 64  # images, for which fitness_weight is meant


class FOA(TTAMethod):
    """Search prompts by an evolution strategy, and shift the features back to where the source's are.

    Each batch is tried with a population of prompts and the best one so far. A prompt is
    fit if its predictions are confident and the activations of all layers have the source statistics. The fittest
    prompt gives the prediction.

    Args:
        backbone: The source model; must be a vision transformer.
        prompt_length: Prompt tokens. Released code.
        population: Prompts per batch; 27 in the released code, 4 + floor(3 ln n) for n scalars of 3 prompts
            of width 768.
        fitness_weight: lambda, weight of the statistics in batches of 64 images. Released code, which takes
            0.2 on ImageNet-R.
        step_size: Standard deviation of the first population. Released code.
        shift_momentum: Share of the old in the running mean of features. Released code.
        num_source: Number of unlabeled source images behind the source statistics. Ours: 300; the released code
            takes the whole validation set.
        seed: Seed of the population and of the first best prompt.

    States:
        source_mean, source_std (depth, D), source_feature (D,): kept by ``reset``. best_prompt (n,).
        test_feature (D,): running mean of features, empty before the first batch. search_*: the distribution of
        prompts, see ``SearchState``.

    Cost:
        ``population`` + 1 forward and 0 backward passes per sample; 28 by default.

    Source:
        Eq. 5-9 of the paper; repository mr-eggplant/FOA.

    Departures:
        The evolution strategy is our own, in float64, because the state of package ``cma``, which the released code
        uses, is not a set of tensors. Each generation is the package's except for negative weights, which are left
        out, and the covariance is factorised after every batch, not every 16; with 2304 scalars a batch contributes
        3e-6 of the covariance. A batch of one image has no standard deviation: it is predicted with the best prompt
        so far and teaches nothing. The prediction has seen the choice among a batch's prompts, but not the
        distribution's update by them.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    source_need = SourceNeed.UNLABELED
    source_settings = ("num_source",)
    paper = "Niu et al., ICML 2024"
    provenance = "released code (mr-eggplant/FOA), ViT on ImageNet-C"
    backbone: ViTBackbone
    source_mean: Tensor
    source_std: Tensor
    source_feature: Tensor
    best_prompt: Tensor
    test_feature: Tensor
    search_step_size: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        prompt_length: int = 3,
        population: int = 27,
        fitness_weight: float = 0.4,
        step_size: float = 1.0,
        shift_momentum: float = 0.9,
        num_source: int = 300,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._passes = (0.0, 0.0)
        self._fitness = torch.tensor(math.nan)

    def configure_adaptation(self) -> None:
        """Freeze the network; declare the distribution of prompts and what is measured."""
        if not isinstance(self.backbone, ViTBackbone):
            raise ValueError("FOA searches prompts, so it needs a vision transformer")
        self.backbone.requires_grad_(False)
        length, width = self.hparams.prompt_length, self.backbone.prompt_dim or 0
        bound = math.sqrt(6 / (3 * (self.backbone.patch_size or 1) ** 2 + width))  # of visual prompt tuning
        prompt = torch.empty(length * width, dtype=torch.float64).uniform_(-bound, bound, generator=self.setup_rng)
        self.add_state("best_prompt", prompt)
        for name, value in initial_search(torch.zeros_like(prompt), self.hparams.step_size)._asdict().items():
            self.add_state(f"search_{name}", value)
        empty = torch.empty(0, dtype=torch.promote_types(self.backbone.dtype, torch.float32))
        self.add_state("test_feature", empty)
        for name in ("source_mean", "source_std", "source_feature"):
            self.add_state(name, empty, source=True)

    def least_source_images(self) -> int:
        """``num_source``: the statistics are of that many images, not of fewer."""
        return int(self.hparams.num_source)

    @torch.no_grad()
    def measure_source(self, loader: Iterable[Tensor]) -> None:
        """Measure the statistics of all layers, without prompt.

        Args:
            loader: Batches of source images (B, C, H, W) in [0, 1].

        Raises:
            ValueError: If fewer than ``num_source`` images arrive.
        """
        source = take_source_images(self, loader, self.hparams.num_source)
        encoded = [self.backbone.encode_layers(self.backbone.embed(images)) for images in source]
        features, layers = (torch.cat(parts) for parts in zip(*encoded, strict=True))
        self.source_mean, self.source_std = batch_statistics(layers)
        self.source_feature = at_least_float32(features).mean(dim=0)

    @torch.no_grad()
    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) of the fittest prompt, its features shifted."""
        embedded, shift = self.backbone.embed(images), self.shift()
        if len(images) == 1:
            features, _ = self.backbone.encode_layers(embedded, self._tokens(self.best_prompt))
            self._passes = (1, 0)
            return self.backbone.classify(features + shift)
        search, size = self.search(), self.hparams.population
        noise = torch.randn(
            size, len(self.best_prompt), dtype=torch.float64, device=self.device, generator=self.device_rng()
        )
        prompts = torch.cat([sample(search, noise), self.best_prompt[None]])
        tried = [self.backbone.encode_layers(embedded, self._tokens(prompt)) for prompt in prompts]
        fitness = torch.stack([self.fitness(features, layers) for features, layers in tried])
        means = torch.stack([at_least_float32(features).mean(dim=0) for features, _ in tried])
        self._evolve(prompts, fitness, means.mean(dim=0))
        self._passes = (size + 1, 0)
        return self.backbone.classify(tried[int(fitness.argmin())][0] + shift)

    def fitness(self, features: Tensor, layers: Tensor) -> Tensor:
        """Eq. 5, to be minimised: entropy of the predictions, and distance of the statistics from the source's.

        Args:
            features: (B, D).
            layers: (B, depth, D).
        """
        here = batch_statistics(layers)
        away = (here.mean - self.source_mean).square().sum() + (here.std - self.source_std).square().sum()
        weight = self.hparams.fitness_weight * len(features) / REFERENCE_BATCH
        return softmax_entropy(self.backbone.classify(features)).sum() + weight * away

    def shift(self) -> Tensor:
        """From the test features seen so far to the source's (Eq. 8): (D,), zero before the first batch."""
        if len(self.test_feature) == 0:
            return torch.zeros_like(self.source_feature, dtype=self.backbone.dtype)
        return (self.source_feature - self.test_feature).to(self.backbone.dtype)

    def search(self) -> SearchState:
        """The distribution of prompts."""
        return SearchState(*(getattr(self, f"search_{name}") for name in SearchState._fields))

    def _tokens(self, prompt: Tensor) -> Tensor:
        return prompt.view(self.hparams.prompt_length, -1).to(self.backbone.dtype)

    def _evolve(self, prompts: Tensor, fitness: Tensor, feature: Tensor) -> None:
        for name, value in evolve(self.search(), prompts, fitness, self.hparams.population)._asdict().items():
            setattr(self, f"search_{name}", value)
        best = fitness.argmin()
        self.best_prompt, self._fitness = prompts[best].clone(), fitness[best]
        before = self.test_feature if len(self.test_feature) > 0 else feature
        self.test_feature = feature + self.hparams.shift_momentum * (before - feature)  # Eq. 9

    def passes(self) -> tuple[float, float]:
        """``population`` + 1 forward (1 for a single image), 0 backward."""
        return self._passes

    def extra_parameters(self) -> int:
        """Scalars of the prompt."""
        return self.best_prompt.numel()

    def diagnostics(self) -> dict[str, float]:
        """The last batch's smallest fitness, and the standard deviation with which prompts are searched."""
        return {"fitness": float(self._fitness), "step_size": float(self.search_step_size)}
