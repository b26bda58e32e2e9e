"""EcoTTA: memory-efficient continual test-time adaptation (Song et al., CVPR 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from tta_bench.functional import softmax_entropy
from tta_bench.functional.parameters import use_batch_statistics
from tta_bench.functional.pixels import labeled_cross_entropy
from tta_bench.functional.segmentation import selected_images
from tta_bench.functional.training_views import training_pair
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.warm_up import warm_up
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.parts.partitions import attach_meta_parts, encode_with_distances
from tta_bench.types import PredictionTiming, SourceNeed


class EcoTTA(TTAMethod):
    """Minimise the entropy over small parts between frozen ones, each held near the output of the frozen part.

    The network is split into partitions f_k, and each gets a meta part m_k that is trained on the source first. No
    code was released; the steps are those of a community implementation, the meta parts of a transformer are ours.

    Args:
        backbone: The source model: a vision transformer, a timm ResNet or a SegFormer.
        lr: Learning rate of SGD (momentum 0.9); ours. The community implementation has 5e-3 for CNNs on CIFAR.
        regularization: lambda, weight of the distances |m_k(x_k) - f_k(x_k)|; 0.5 is said to be the paper's, the
            community implementation has 0.25.
        entropy_margin: Only images below this share of the largest entropy ln K are learned from (paper, after EATA).
        mode: ``two_phase``: a step on the distances, then one on the entropies (community implementation).
            ``single``: one step on their sum (the paper's loss).
        partitions: Number of partitions; 4 or 5 in the paper, for transformers ours. A SegFormer's are its stages.
        bottleneck: Width inside a transformer's meta parts; ours.
        warmup_steps: Updates of the meta parts on labeled source images; ours. With 0 the meta parts of a transformer
            start without effect.
        warmup_lr: Learning rate of AdamW in the warm-up; ours.
        seed: Seed of the meta parts' initial values and the augmentations of the warm-up.

    Cost:
        2 forward passes (``single``: 1) and 1 backward pass per sample that passes the margin. The distances' backward
        stays within the meta parts and is not counted.

    Source:
        The paper; the authors' example and the community implementation in repository Lily-Le/EcoTTA.

    Departures:
        The paper's meta part, BN(f(x)) + relu(BN(conv(x))), is kept for ResNets. For a transformer it is a factor and
        a summand per channel of f(x) beside a bottleneck of linear layers, which starts without effect. Partitions of
        a ResNet end where its stages end. The stages of a SegFormer have the same meta parts as a transformer's, with a
        strided 3x3 convolution as first layer of the bottleneck; the margin selects pixels, and the head's batch norm
        keeps the statistics of the source. If no image passes the margin there is no step on the entropy, where the
        community implementation takes one of momentum only.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    segments = True
    source_need = SourceNeed.LABELED
    source_settings = ("partitions", "bottleneck", "warmup_steps", "warmup_lr", "seed")
    paper = "Song et al., CVPR 2023"
    provenance = "re-implementation; defaults ours"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        regularization: float = 0.5,
        entropy_margin: float = 0.4,
        mode: Literal["two_phase", "single"] = "two_phase",
        partitions: int = 4,
        bottleneck: int = 64,
        warmup_steps: int = 5000,
        warmup_lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._selected = math.nan  # share of the last batch's scores
        self._confident_scores = torch.zeros(1, dtype=torch.bool)  # of the last batch, (B,) or (B, H, W)
        self._distance = torch.tensor(math.nan)  # for the log only

    def passes(self) -> tuple[float, float]:
        """2 forward (``single``: 1), and backward the share of the last batch that passed the margin."""
        backward = selected_images(self._confident_scores) / len(self._confident_scores)
        return (2 if self.hparams.mode == "two_phase" else 1, backward)

    def configure_adaptation(self) -> None:
        """Freeze the network and train its meta parts; a classifier's batch norm layers use the batch's statistics."""
        h = self.hparams
        self.meta = attach_meta_parts(self.backbone, h.partitions, h.bottleneck, self.setup_rng)
        use_batch_statistics(self.backbone)

    def configure_optimizers(self) -> Optimizer:
        """SGD over the meta parts."""
        return SGD(self.meta, lr=self.hparams.lr, momentum=0.9)

    def measure_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train the meta parts with cross-entropy on source images with changed colours.

        Args:
            loader: Batches of images (B, C, H, W) in [0, 1] and labels (B,) or (B, H, W).
        """
        optimizer = AdamW(self.meta, lr=self.hparams.warmup_lr, weight_decay=0.0)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            view, seen_labels = training_pair(  # as in the community implementation
                images, labels, self.setup_rng, mirror=0.0, jitter=0.4, grey=0.1, blur=0.2, blur_size=3
            )
            return labeled_cross_entropy(self.backbone(view), seen_labels)

        warm_up(self, loader, optimizer, loss, self.hparams.warmup_steps)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) before the step on the entropies."""
        if self.hparams.mode == "two_phase":
            _, distances = encode_with_distances(self.backbone, images, local=True)
            self.update(self._penalty(distances))
            logits = self.backbone(images)
            if (entropies := self.confident_entropies(logits)).numel() > 0:
                self.update(entropies.mean())
        else:
            encoded, distances = encode_with_distances(self.backbone, images, local=False)
            logits = self.backbone.classify(encoded)
            entropies, loss = self.confident_entropies(logits), self._penalty(distances)
            self.update(loss + entropies.mean() if entropies.numel() > 0 else loss)
        return logits

    def _penalty(self, distances: Tensor) -> Tensor:
        """Lambda times the sum over partitions of the mean distances (B, K)."""
        total = distances.mean(dim=0).sum()
        self._distance = total.detach()
        weighted: Tensor = self.hparams.regularization * total
        return weighted

    def confident_entropies(self, logits: Tensor) -> Tensor:
        """Entropies below the margin (N,), of logits (B, K) or (B, K, H, W)."""
        entropies = softmax_entropy(logits)
        confident = entropies < self.hparams.entropy_margin * math.log(logits.shape[1])
        chosen = entropies[confident]
        self._selected, self._confident_scores = len(chosen) / entropies.numel(), confident
        return chosen

    def diagnostics(self) -> dict[str, float]:
        """Share of images or pixels that passed the margin last, and the distance of meta parts from frozen ones."""
        return {"selected": self._selected, "distance": float(self._distance)}
