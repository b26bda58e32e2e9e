"""DPCore: dynamic prompt coreset for continual test-time adaptation (Zhang et al., ICML 2025)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from tta_bench.functional import Statistics, batch_statistics, map_statistics, softmax_entropy, statistics_distance
from tta_bench.functional.pixels import per_image
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone, Embedded
from tta_bench.models.parts.prompt_space import NormSpace, PromptSpace, TokenSpace
from tta_bench.types import PredictionTiming, SourceNeed

DIAGNOSTICS = ("distance_raw", "distance_weighted", "distance_floor", "is_new_domain")


class DPCore(TTAMethod):
    """Learn a visual prompt for each new kind of domain, and reuse and refine it when that kind returns.

    B images, D feature width, L prompt tokens, K coreset elements. Defaults are the paper's text; the
    configuration ``dpcore_official`` sets what the released code does instead.

    On a network that scores pixels the statistics of an image are those over the positions of its last map, and those
    of a batch, or of the source, are their average over images: a batch of one image has statistics like any other.
    This and the prompts of such networks are ours; no code was released for them.

    Args:
        backbone: The source model; must take prompts for the space ``tokens``.
        prompt_length: L.
        lr: Learning rate of AdamW. Paper 0.01; the released code hard-codes 0.1.
        rho: A batch is of a known domain if the weighted prompt brings its distance to at most this share.
        tau: Temperature of the weights (Eq. 7); 3.0 in the released configuration, no value in the text.
        alpha: Share of the new value in a coreset update (Eq. 8).
        steps_new: Updates of a prompt that is learned from scratch.
        prompt_space: What a prompt is: ``tokens``, or ``norms``, the affine parameters of the norm layers (the paper's
            Exp-3), which every network has.
        max_size: Largest number of coreset elements; None lets the coreset grow, as published.
        overflow: What makes room in a full coreset: ``merge`` averages the two elements of the smallest distance,
            ``discard`` drops the oldest (the paper compares both, with 15 elements).
        floor_guard: A batch whose distance is at most this multiple of the sampling floor (what clean batches of its
            size have) is predicted without prompt and teaches nothing; 0, as published, lets no batch pass. Ours.
        coreset_stats: What Eq. 8 writes back: the ``raw`` statistics of the batch (paper) or those under the
            weighted prompt, ``prompted`` (released code).
        prompt_init: Distribution of a prompt before it is learned: ``gaussian`` (paper) or ``uniform`` (released
            code), with the same standard deviation. One draw serves every new element.
        source_filter: ``none`` (paper: random images), ``entropy`` (released code: images whose entropy under
            the initial prompt is below ln(num_classes) / 2 - 1, in the loader's order), or ``confident`` (paper, for
            images that are not of the source: entropy below 0.4 ln(num_classes), without prompt).
        num_source: Number of unlabeled source images behind the source statistics.
        seed: Seed of the initial prompt.

    States:
        source_mean, source_std (D,), initial_prompt (L, D), for pixels also source_spread (), the mean distance of a
        source image to those statistics: kept by ``reset``. coreset_mean, coreset_std (K, D),
        coreset_prompt (K, L, D): emptied by ``reset``. In the space ``norms`` a prompt has shape (P,).

    Cost:
        Forward / backward passes per sample: 2 / 1 for a known domain, 2 + steps_new / steps_new for a new one
        (1 + steps_new / steps_new while the coreset is empty).

    Source:
        Alg. 1, Eq. 5-8 of the paper; repository yunbeizhang/DPCore.

    Departures:
        The evaluation of the weighted prompt is also the forward pass of its update; the released code computes
        the same numbers with a third pass. A batch of one image has no standard deviation (of pixels it has): it
        is predicted by the source model and teaches nothing, where the released code would store NaN.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    source_need = SourceNeed.UNLABELED
    segments = True
    source_settings = ("num_source", "source_filter", "prompt_space", "prompt_length", "prompt_init", "seed")
    paper = "Zhang et al., ICML 2025"
    provenance = "paper"
    initial_prompt: Tensor
    source_mean: Tensor
    source_std: Tensor
    source_spread: Tensor
    coreset_mean: Tensor
    coreset_std: Tensor
    coreset_prompt: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        prompt_length: int = 8,
        lr: float = 0.01,
        rho: float = 0.8,
        tau: float = 3.0,
        alpha: float = 0.999,
        steps_new: int = 50,
        prompt_space: Literal["tokens", "norms"] = "tokens",
        max_size: int | None = None,
        overflow: Literal["merge", "discard"] = "merge",
        floor_guard: float = 0.0,
        coreset_stats: Literal["raw", "prompted"] = "raw",
        prompt_init: Literal["gaussian", "uniform"] = "gaussian",
        source_filter: Literal["none", "entropy", "confident"] = "none",
        num_source: int = 300,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        if max_size is not None and max_size < 1:
            raise ValueError(f"method.max_size must be 1 or more, or null for a coreset that grows; got {max_size}")
        if floor_guard < 0:
            raise ValueError(f"method.floor_guard must be 0 or more, got {floor_guard}")
        self.save_hyperparameters(ignore="backbone", logger=False)
        nothing = torch.tensor(math.nan)
        self._passes = (0.0, 0.0)
        self._last: dict[str, Tensor | float] = dict.fromkeys(DIAGNOSTICS, nothing)  # for the log only

    def configure_adaptation(self) -> None:
        """Freeze the network; declare the prompt and an empty coreset."""
        self.backbone.requires_grad_(False)
        tokens = self.hparams.prompt_space == "tokens"
        self.space: PromptSpace = (
            TokenSpace(self.backbone, self.hparams.prompt_length, self._draw) if tokens else NormSpace(self.backbone)
        )
        initial, dim = self.space.value(), self.backbone.feature_dim
        self.add_state("initial_prompt", initial, source=True)
        digits = torch.promote_types(self.backbone.dtype, torch.float32)  # statistics are never in half precision
        for name in ("source_mean", "source_std"):
            self.add_state(name, torch.zeros(dim, dtype=digits), source=True)
        if self.backbone.segments:
            self.add_state("source_spread", torch.zeros((), dtype=digits), source=True)
        for name in ("coreset_mean", "coreset_std"):
            self.add_state(name, torch.empty(0, dim, dtype=digits))
        self.add_state("coreset_prompt", initial.new_empty(0, *initial.shape))

    def _draw(self, shape: tuple[int, int], std: float) -> Tensor:
        if self.hparams.prompt_init == "uniform":
            bound = math.sqrt(3) * std
            return torch.empty(shape).uniform_(-bound, bound, generator=self.setup_rng)
        return torch.empty(shape).normal_(0, std, generator=self.setup_rng)

    def configure_optimizers(self) -> Optimizer:
        """AdamW over the prompt, with its default weight decay."""
        return AdamW(self.space.trainable, lr=self.hparams.lr)

    def least_source_images(self) -> int:
        """All that are wanted."""
        return int(self.hparams.num_source)

    @torch.no_grad()
    def measure_source(self, loader: Iterable[Tensor]) -> None:
        """Measure the source statistics, without prompt.

        Args:
            loader: Batches of source images (B, C, H, W) in [0, 1].

        Raises:
            ValueError: If fewer than ``num_source`` images arrive or pass the filter.
        """
        kept: list[Tensor] = []
        wanted = self.hparams.num_source
        for images in loader:
            images = images.to(self.device)
            features = self.backbone.features(images[self._passes_filter(images)])
            if self.backbone.segments:  # maps may differ in size, and are large
                features = torch.cat(map_statistics(features), dim=1)
            kept.append(features)
            if sum(map(len, kept)) >= wanted:
                break
        features = torch.cat(kept)[:wanted]
        if len(features) < wanted:
            chosen = "" if self.hparams.source_filter == "none" else f" past source_filter={self.hparams.source_filter}"
            raise ValueError(f"DPCore wants {wanted} source images and got {len(features)}{chosen}: lower num_source")
        if self.backbone.segments:
            of_images = Statistics(*features.chunk(2, dim=1))
            self.source_mean, self.source_std = (value.mean(dim=0) for value in of_images)
            self.source_spread = self._distance(of_images).mean()
        else:
            self.source_mean, self.source_std = batch_statistics(features)

    def _passes_filter(self, images: Tensor) -> Tensor:
        if self.hparams.source_filter == "none":
            return torch.ones(len(images), dtype=torch.bool, device=images.device)
        released = self.hparams.source_filter == "entropy"
        embedded = self.space.embed(self.backbone, images)
        features = (self.space.prompted if released else self.space.raw)(self.backbone, embedded)
        logits = self.backbone.classify(features)
        largest = math.log(logits.shape[1])
        return per_image(softmax_entropy(logits)) < (largest / 2 - 1 if released else 0.4 * largest)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) of the last forward pass, before its update (Alg. 1)."""
        self.require_source()
        embedded = self.space.embed(self.backbone, images)
        features = self.space.raw(self.backbone, embedded)
        self._passes = (1, 0)
        if len(images) < 2 and not self.backbone.segments:
            return self.backbone.classify(features)
        raw = self._statistics(features)
        d_raw = self._distance(raw)
        if self.hparams.floor_guard > 0 and bool(d_raw <= self.hparams.floor_guard * self._floor(len(images))):
            self._record(len(images), d_raw, torch.full_like(d_raw, math.nan), is_new=False)
            return self.backbone.classify(features)
        d_weighted, evaluated, is_new = torch.full_like(d_raw, math.nan), 1, True
        if len(self.coreset_mean) > 0:
            weights = self._weights(raw)
            self._start_from(torch.tensordot(weights.to(self.coreset_prompt.dtype), self.coreset_prompt, dims=1))
            features = self.space.prompted(self.backbone, embedded)
            prompted = self._statistics(features)
            d_weighted, evaluated = self._distance(prompted), 2
            is_new = bool(d_weighted > self.hparams.rho * d_raw)
        if is_new:
            features = self._learn_new(embedded, raw)
            self._passes = (evaluated + self.hparams.steps_new, self.hparams.steps_new)
        else:
            self.update(d_weighted)  # its forward pass was the evaluation
            self._refine(raw if self.hparams.coreset_stats == "raw" else prompted, weights)
            self._passes = (evaluated, 1)
        self._record(len(images), d_raw, d_weighted, is_new)
        return self.backbone.classify(features.detach())

    def passes(self) -> tuple[float, float]:
        """2 forward, 1 backward for a known domain; with ``steps_new`` more forward, as many backward for a new one."""
        return self._passes

    def extra_parameters(self) -> int:
        """Scalars of the prompt being learned and of all stored prompts."""
        return self.initial_prompt.numel() + self.coreset_prompt.numel()

    def _statistics(self, encoded: Tensor) -> Statistics:
        return batch_statistics(self.backbone.features_of(encoded))

    def _distance(self, stats: Statistics) -> Tensor:  # Eq. 5
        return statistics_distance(stats, Statistics(self.source_mean, self.source_std))

    def _weights(self, stats: Statistics) -> Tensor:  # Eq. 7: (K,)
        distances = statistics_distance(stats, Statistics(self.coreset_mean, self.coreset_std))
        return torch.softmax(-distances / self.hparams.tau, dim=0)

    def _start_from(self, prompt: Tensor) -> None:
        self.space.load(prompt)
        self.restart_optimizer()

    def _learn_new(self, embedded: Embedded | Tensor, raw: Statistics) -> Tensor:
        """Learn a prompt from scratch (Eq. 6), append it, and return the features of the last forward pass."""
        self._start_from(self.initial_prompt)
        for _ in range(self.hparams.steps_new):
            features = self.space.prompted(self.backbone, embedded)
            self.update(self._distance(self._statistics(features)))
        self.coreset_mean = torch.cat([self.coreset_mean, raw.mean[None]])
        self.coreset_std = torch.cat([self.coreset_std, raw.std[None]])
        self.coreset_prompt = torch.cat([self.coreset_prompt, self.space.value()[None]])
        if self.hparams.max_size is not None and len(self.coreset_mean) > self.hparams.max_size:
            self._make_room()
        return features

    def _make_room(self) -> None:
        """Let the oldest element go, or average the two whose statistics are nearest, in the older one's place."""
        older, gone = 0, 0
        if self.hparams.overflow == "merge":
            elements = Statistics(self.coreset_mean, self.coreset_std)
            pairs = statistics_distance(Statistics(elements.mean[:, None], elements.std[:, None]), elements)  # (K, K)
            pairs.masked_fill_(torch.ones_like(pairs, dtype=torch.bool).tril(), math.inf)
            older, gone = divmod(int(pairs.argmin()), len(pairs))
        for name in ("coreset_mean", "coreset_std", "coreset_prompt"):
            values = getattr(self, name)
            values[older] = (values[older] + values[gone]) / 2
            setattr(self, name, torch.cat([values[:gone], values[gone + 1 :]]))

    @torch.no_grad()
    def _refine(self, stats: Statistics, weights: Tensor) -> None:  # Eq. 8
        rate, prompt = self.hparams.alpha * weights[:, None], self.space.value()  # (K, 1)
        self.coreset_mean += rate * (stats.mean - self.coreset_mean)
        self.coreset_std += rate * (stats.std - self.coreset_std).clamp(min=0)  # never shrinks, in text and code
        by_element = rate.view(-1, *(1,) * prompt.ndim).to(prompt.dtype)
        self.coreset_prompt += by_element * (prompt - self.coreset_prompt)

    def _floor(self, num_images: int) -> Tensor:
        """The distance that clean batches of this size have on average: sampling alone."""
        if self.backbone.segments:
            spread = self.source_spread
        else:  # of the mean; a Gaussian standard deviation has it over sqrt 2
            spread = torch.linalg.vector_norm(self.source_std) * (1 + 0.5**0.5)
        return spread * (1 / num_images + 1 / self.hparams.num_source) ** 0.5

    def _record(self, num_images: int, d_raw: Tensor, d_weighted: Tensor, is_new: bool) -> None:
        floor = self._floor(num_images)
        # d_weighted is nan while the coreset is empty
        self._last = dict(zip(DIAGNOSTICS, (d_raw, d_weighted.detach(), floor, float(is_new)), strict=True))

    def diagnostics(self) -> dict[str, float]:
        """Coreset size, and the last batch's distances to the source without and with the weighted prompt."""
        return {"coreset_size": float(len(self.coreset_mean)), **{k: float(v) for k, v in self._last.items()}}
