"""ViDA: homeostatic visual domain adapters for continual test-time adaptation (Liu et al., ICLR 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from tta_bench.functional import lerp, soft_cross_entropy, stochastic_restore, symmetric_cross_entropy
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.pixels import labeled_cross_entropy
from tta_bench.functional.training_views import training_pair
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.warm_up import warm_up
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.adapters import adapter_parameters, branch_scales, inject_adapters
from tta_bench.types import PredictionTiming, SourceNeed

LOSSES = {"symmetric": symmetric_cross_entropy, "cross_entropy": soft_cross_entropy}


class ViDA(TTAMethod):
    """Distill an averaged teacher into a network with low- and high-rank adapters, balanced by the uncertainty.

    Defaults are the released ImageNet-C configuration for ViT-B; the values for CIFAR are in ``configs/tuned``.

    Args:
        backbone: The source model; must have attention layers.
        lr: Learning rate of the network (released code).
        adapter_lr: Learning rate of the adapters (released code).
        optimizer: ``sgd`` (Nesterov momentum 0.9; released ImageNet code) or ``adam`` (released CIFAR code).
        loss: Cross-entropy between student and teacher: ``symmetric`` (released ImageNet code), or ``cross_entropy``
            with the teacher as target (released CIFAR code).
        low_rank: Rank of the branches for what the domains share (released code).
        high_rank: Rank of the branches for what is specific to a domain (released code); where a layer is narrower, its
            width (ours).
        num_views: Augmented views behind the uncertainty, at least 2 (released code).
        views: Kind of the views, see ``random_view`` (released code: ``cotta``).
        threshold: Uncertainty from which on the high-rank branches are strengthened (released code).
        scales: ``paper``: each branch has its factor. ``released``: the high-rank factor stays 1, as a slip in the
            released code has it.
        teacher_momentum: Share of the old network in the teacher's (released code).
        adapter_momentum: Share of the old adapters in the teacher's (released code).
        restore_probability: Probability that a weight of the student returns to its value before the stream; 0 in the
            released ImageNet code, 0.1 in the released CIFAR code.
        warmup_steps: Updates of the adapters on labeled source images; ours, the paper gives no number. With 0 the
            adapters start without effect.
        warmup_lr: Learning rate of AdamW in the warm-up; ours.
        seed: Seed of the adapters' initial values, the augmentations and the restored weights.

    Raises:
        ValueError: If there are fewer than 2 views, or the backbone has no attention layers.

    States:
        The branches' factors, which the next batch's views are seen with.

    Cost:
        ``num_views`` + 2 forward passes and 1 backward pass per sample.

    Source:
        The paper (uncertainty: Eq. 4, loss: Eq. 6); repository Yangsenqiao/vida.

    Departures:
        The uncertainty is that of the released code: a variance over augmented views, one number per batch; the paper
        uses dropout and a number per sample. The adapters' warm-up on the source is part of the method, where the
        released code expects a checkpoint of it and says little about how it was made. Where every pixel has scores:
        the authors put their adapters into CoTTA's segmentation code and released neither; here the losses and the
        uncertainty are those above, as means over pixels, and views leave pixels in their places (ours). A SegFormer's
        adapters sit on queries, keys, values and the output of its attention.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    source_need = SourceNeed.LABELED
    source_settings = ("low_rank", "high_rank", "warmup_steps", "warmup_lr", "seed")
    paper = "Liu et al., ICLR 2024"
    provenance = "released code (Yangsenqiao/vida), ViT-B on ImageNet-C; warm-up ours"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 5e-7,
        adapter_lr: float = 2e-7,
        optimizer: Literal["sgd", "adam"] = "sgd",
        loss: Literal["symmetric", "cross_entropy"] = "symmetric",
        low_rank: int = 1,
        high_rank: int = 128,
        num_views: int = 10,
        views: View = "cotta",
        threshold: float = 0.2,
        scales: Literal["paper", "released"] = "paper",
        teacher_momentum: float = 0.999,
        adapter_momentum: float = 0.8,
        restore_probability: float = 0.0,
        warmup_steps: int = 2000,
        warmup_lr: float = 1e-4,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        if num_views < 2:
            raise ValueError(f"ViDA's uncertainty is a variance over views and needs at least 2, got {num_views}")
        self._uncertainty = torch.tensor(math.nan)  # for the log only

    def passes(self) -> tuple[float, float]:
        """``num_views`` + 2 forward (views and images by the teacher, images by the student) and 1 backward."""
        return (self.hparams.num_views + 2, 1)

    def configure_adaptation(self) -> None:
        """Inject the adapters; everything is trained, and averaged by the teacher."""
        inject_adapters(self.backbone, self.hparams.low_rank, self.hparams.high_rank, self.setup_rng)
        self.backbone.requires_grad_(True)
        self.add_copy("teacher")
        self.student_network, self.teacher_network = (
            _without(network, adapter_parameters(network)) for network in (self.backbone, self.teacher)
        )

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam with a learning rate for the network and one for the adapters."""
        h = self.hparams
        groups: list[dict[str, Any]] = [
            {"params": self.student_network, "lr": h.lr},
            {"params": adapter_parameters(self.backbone), "lr": h.adapter_lr},
        ]
        return Adam(groups) if h.optimizer == "adam" else SGD(groups, momentum=0.9, nesterov=True)

    def measure_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train the adapters, the network frozen, with cross-entropy on cropped and mirrored source images.

        Args:
            loader: Batches of images (B, C, H, W) in [0, 1] and labels (B,) or (B, H, W).
        """
        optimizer = AdamW(adapter_parameters(self.backbone), lr=self.hparams.warmup_lr, weight_decay=0.0)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            images, labels = training_pair(images, labels, self.setup_rng, crop=0.6)
            return labeled_cross_entropy(self.backbone(images), labels)

        warm_up(self, loader, optimizer, loss, self.hparams.warmup_steps)
        self.teacher.load_state_dict(self.backbone.state_dict())

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> the teacher's logits (B, K) or (B, K, H, W), before the update."""
        with torch.no_grad():
            self.balance(torch.stack([self.teacher(view) for view in self.draw_views(images)]))
            target: Tensor = self.teacher(images)
        self.update(LOSSES[self.hparams.loss](self.backbone(images), target).mean())
        self._average()
        if self.hparams.restore_probability > 0:
            student = [*self.student_network, *adapter_parameters(self.backbone)]
            draw = partial(self.draw_mask, self.device_rng())
            stochastic_restore(student, self.initial_values(student), draw)
        return target

    def draw_views(self, images: Tensor) -> Iterator[Tensor]:
        """``num_views`` augmented views of a batch."""
        h, in_place = self.hparams, self.backbone.segments
        return (random_view(images, h.views, self.rng, in_place=in_place) for _ in range(h.num_views))

    def draw_mask(self, rng: torch.Generator, parameter: Tensor) -> Tensor:
        """Which entries of a parameter are restored: a boolean mask of its shape."""
        mask = torch.empty(parameter.shape, dtype=torch.bool, device=parameter.device)
        return mask.bernoulli_(self.hparams.restore_probability, generator=rng)

    def balance(self, logits: Tensor) -> None:
        """Set the branches' factors 1 -/+ U from the logits (V, B, K) or (V, B, K, H, W) of the views."""
        uncertainty = 0.1 * logits.var(dim=0).mean()  # the factor is the released code's
        signed = torch.where(uncertainty >= self.hparams.threshold, uncertainty, -uncertainty)
        for network in (self.backbone, self.teacher):
            factors = branch_scales(network)
            factors.low.copy_(1 - signed)
            if self.hparams.scales == "paper":
                factors.high.copy_(1 + signed)
        self._uncertainty = uncertainty

    def _average(self) -> None:
        lerp(self.teacher_network, self.student_network, 1 - self.hparams.teacher_momentum)
        rate = 1 - self.hparams.adapter_momentum
        lerp(adapter_parameters(self.teacher), adapter_parameters(self.backbone), rate)

    def diagnostics(self) -> dict[str, float]:
        """Uncertainty U of the last batch and the branches' factors."""
        factors = branch_scales(self.backbone)
        return {
            "uncertainty": float(self._uncertainty),
            "scale_low": float(factors.low),
            "scale_high": float(factors.high),
        }


def _without(network: nn.Module, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    excluded = {id(p) for p in parameters}
    return [p for p in network.parameters() if id(p) not in excluded]
