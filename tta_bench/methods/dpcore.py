"""DPCore: dynamic prompt coreset for continual test-time adaptation (Zhang et al., ICML 2025)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from tta_bench.functional import Statistics, batch_statistics, softmax_entropy
from tta_bench.functional.coreset import Coreset
from tta_bench.functional.pixels import per_image
from tta_bench.functional.statistics import SourceStatistics
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.source_images import take_source_images
from tta_bench.models.backbones.base import Backbone, Embedded
from tta_bench.models.parts.prompt_space import NormSpace, PromptSpace, TokenSpace
from tta_bench.types import PredictionTiming, SourceNeed

UNMEASURED = {"distance_raw": math.nan, "distance_weighted": math.nan, "distance_floor": math.nan, "is_new_domain": 0.0}


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
            Exp-3). Networks without tokens use ``norms`` in any case, and the run says so.
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
        source_mean, source_std (D,), source_spread () and initial_prompt (L, D): kept by ``reset``. coreset.mean,
        coreset.std (K, D) and coreset.prompt (K, L, D): emptied by ``reset``. In the space ``norms`` a prompt has
        shape (P,).

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
        self._passes = (0, 0)
        self._last: dict[str, Tensor | float] = dict(UNMEASURED)  # for the log only

    def configure_adaptation(self) -> None:
        """Freeze the network; declare the prompt, the source statistics and an empty coreset."""
        self.backbone.requires_grad_(False)
        h = self.hparams
        self.space: PromptSpace
        if h.prompt_space == "tokens" and self.backbone.prompt_dim is not None:
            self.space = TokenSpace(self.backbone, h.prompt_length, h.prompt_init, self.setup_rng)
        else:
            self.space = NormSpace(self.backbone)
        self.add_state("initial_prompt", self.space.value(), source=True)
        self.coreset = Coreset(self.backbone.feature_dim, self.initial_prompt, h.max_size, h.overflow)
        width = self.backbone.feature_dim
        for name, shape in (("mean", (width,)), ("std", (width,)), ("spread", ())):
            self.add_state(f"source_{name}", self.coreset.mean.new_zeros(shape), source=True)

    def notices(self) -> tuple[str, ...]:
        """That there are no tokens to prompt, if so."""
        if self.hparams.prompt_space != "tokens" or self.backbone.prompt_dim is not None:
            return ()
        return (
            f"the network takes no prompt tokens, so {type(self).__name__} learns the affine parameters of its norm "
            "layers instead (method.prompt_space=norms)",
        )

    def configure_optimizers(self) -> Optimizer:
        """AdamW over the prompt, with its default weight decay."""
        return AdamW(self.space.trainable, lr=self.hparams.lr)

    def least_source_images(self) -> int:
        """``num_source``: the statistics are of that many images, not of fewer."""
        return int(self.hparams.num_source)

    @torch.no_grad()
    def measure_source(self, loader: Iterable[Tensor]) -> None:
        """Measure the source statistics, without prompt.

        Args:
            loader: Batches of source images (B, C, H, W) in [0, 1].

        Raises:
            ValueError: If fewer than ``num_source`` images arrive or pass the filter.
        """
        chosen = self.hparams.source_filter
        keep, condition = (None, "") if chosen == "none" else (self._is_sure, f"source_filter={chosen}")
        images = take_source_images(self, loader, self.hparams.num_source, keep=keep, condition=condition)
        measured = SourceStatistics.measure(map(self.backbone.features, images))
        self.source_mean, self.source_std, self.source_spread = measured

    def _is_sure(self, images: Tensor) -> Tensor:
        """Whether the entropy of each image (B,) is low enough for ``source_filter``."""
        released = self.hparams.source_filter == "entropy"
        encode = self.space.prompted if released else self.space.raw
        logits = self.backbone.classify(encode(self.backbone, self.space.embed(self.backbone, images)))
        largest = math.log(logits.shape[1])
        return per_image(softmax_entropy(logits)) < (largest / 2 - 1 if released else 0.4 * largest)

    @property
    def source(self) -> SourceStatistics:
        """Statistics of the source, without prompt."""
        return SourceStatistics(self.source_mean, self.source_std, self.source_spread)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) of the last forward pass, before its update (Alg. 1)."""
        h = self.hparams
        self._passes, self._last = (1, 0), dict(UNMEASURED)
        batch = self.space.embed(self.backbone, images)
        features = self.space.raw(self.backbone, batch)
        if len(images) == 1 and not self.backbone.segments:  # no standard deviation
            return self.backbone.classify(features)
        raw = self._statistics(features)  # Alg. 1, lines 2 and 7
        d_raw, floor = self.source.distance(raw), self.source.floor(len(images), h.num_source)
        self._last |= {"distance_raw": d_raw, "distance_floor": floor}
        if h.floor_guard > 0 and d_raw <= h.floor_guard * floor:  # ours
            return self.backbone.classify(features)

        if len(self.coreset) == 0:  # lines 3 and 4
            return self._learn_new(batch, raw)
        weights = self.coreset.weights(raw, h.tau)  # line 8
        self._start_from(self.coreset.mix(weights))
        features = self.space.prompted(self.backbone, batch)
        prompted = self._statistics(features)  # line 9
        d_weighted = self.source.distance(prompted)
        self._passes = (2, 0)
        self._last["distance_weighted"] = d_weighted.detach()
        if d_weighted > h.rho * d_raw:  # lines 10 and 11, as a product: no distance is divided by zero
            return self._learn_new(batch, raw)  # lines 15 and 16
        self.update(d_weighted)  # line 12; its forward pass was the evaluation
        self._passes = (2, 1)
        stats = raw if h.coreset_stats == "raw" else prompted
        self.coreset.refine(weights, stats, self.space.value(), h.alpha)  # line 13
        return self.backbone.classify(features.detach())

    def _learn_new(self, batch: Embedded | Tensor, raw: Statistics) -> Tensor:
        """Learn a prompt from scratch (Eq. 6), add it to the coreset, and predict with its last forward pass."""
        self._start_from(self.initial_prompt)
        for _ in range(self.hparams.steps_new):
            features = self.space.prompted(self.backbone, batch)
            self.update(self.source.distance(self._statistics(features)))
        self.coreset.append(raw, self.space.value())
        self._passes = (self._passes[0] + self.hparams.steps_new, self.hparams.steps_new)
        self._last["is_new_domain"] = 1.0
        return self.backbone.classify(features.detach())

    def _start_from(self, prompt: Tensor) -> None:
        self.space.load(prompt)
        self.restart_optimizer()

    def _statistics(self, encoded: Tensor) -> Statistics:
        return batch_statistics(self.backbone.features_of(encoded))

    def passes(self) -> tuple[float, float]:
        """2 forward, 1 backward for a known domain; with ``steps_new`` more forward, as many backward for a new one."""
        return self._passes

    def extra_parameters(self) -> int:
        """Scalars of the prompt being learned and of all stored prompts."""
        return self.initial_prompt.numel() + self.coreset.prompt.numel()

    def diagnostics(self) -> dict[str, float]:
        """Coreset size, and the last batch's distances to the source without and with the weighted prompt.

        A distance is nan where none was measured: with the weighted prompt while the coreset is empty, all of a batch
        of one image.
        """
        return {"coreset_size": float(len(self.coreset)), **{k: float(v) for k, v in self._last.items()}}
