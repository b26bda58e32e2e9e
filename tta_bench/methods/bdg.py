"""BDG: balancing discriminability and generalizability (Yang et al., CVPR 2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.optim import Optimizer

from tta_bench.functional import adapt_weights_and_biases, ema_update, sgd_or_adam, symmetric_cross_entropy
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.entropy import at_least_float32
from tta_bench.functional.pixels import per_class
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming

LARGEST_THRESHOLD = 0.95


class BDG(TTAMethod):
    """Learn from a teacher where it is reliable, correct it by the source model elsewhere, and stay near the source.

    Thresholds per class tell which predictions are reliable; images whose supervision is unlike the past's weigh
    more; after each step the weights are drawn back to the source, most those that drifted most. No code was released
    and this is a re-implementation from the abstract; formulas and constants are ours.

    Args:
        backbone: The source model.
        lr: Learning rate; that of CoTTA on ImageNet-C.
        optimizer: ``sgd`` (Nesterov, momentum 0.9) or ``adam`` (betas 0.9, 0.999), as CoTTA's on CIFAR.
        teacher_momentum: Share of the old weights in the teacher's.
        threshold_momentum: Share of the old in the global threshold and in the class frequencies.
        quantile: Quantile of a batch's confidences that the global threshold follows.
        diversity_momentum: Share of the old in the mean of past supervision.
        alignment: kappa, the largest share of the way back to the source in a step.
        views: Kind of the augmented view, see ``random_view``.
        seed: Seed of the views.

    States:
        threshold (): the global one. frequency (K,): mean predicted probability per class. supervision (K,): mean
        past supervision. teacher: averaged copy of the network; source: copy that never moves.

    Cost:
        4 forward and 2 backward passes per sample.

    Source:
        The paper's abstract; thresholds as those of FreeMatch (Wang et al., ICLR 2023) and repository
        tjy1423317192/PLF.

    Departures:
        How much of this is the paper's cannot be told without its code. The cross-entropy is symmetric, as CoTTA's on
        ImageNet, because the plain one has no gradient while student and teacher are equal, and they start equal. Where
        every pixel has scores, pixels take the place of images in all formulas, and the augmented view leaves them
        where they are.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    paper = "Yang et al., CVPR 2024"
    provenance = "re-implementation; defaults ours"
    threshold: Tensor
    frequency: Tensor
    supervision: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        teacher_momentum: float = 0.999,
        threshold_momentum: float = 0.999,
        quantile: float = 0.8,
        diversity_momentum: float = 0.9,
        alignment: float = 1e-3,
        views: View = "cotta",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._reliable = torch.tensor(torch.nan)

    def configure_adaptation(self) -> None:
        """Train the weights and biases; copy the network twice; declare uniform running means."""
        self.adapted = adapt_weights_and_biases(self.backbone)
        self.add_copy("teacher")
        self.add_copy("source", moves=False)
        classes = self.backbone.num_classes
        uniform = torch.full((classes,), 1 / classes, dtype=torch.promote_types(self.backbone.dtype, torch.float32))
        self.add_state("threshold", (uniform[0] + 0.2).clamp(max=LARGEST_THRESHOLD))
        self.add_state("frequency", uniform)
        self.add_state("supervision", uniform)

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the weights and biases."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, nesterov=True)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) of the teacher before the update."""
        with torch.no_grad():
            prediction = self.teacher(images)
            target = self.supervise(prediction, self.source(images))
            weights = self.diversity(target.exp())
        view = random_view(images, self.hparams.views, self.rng, in_place=self.backbone.segments)
        loss = sum(symmetric_cross_entropy(self.backbone(x), target) for x in (images, view)) / 2
        self.update((weights * loss).mean())
        ema_update(self.teacher, self.backbone, self.hparams.teacher_momentum)
        self.align()
        return prediction

    def supervise(self, teacher: Tensor, source: Tensor) -> Tensor:
        """What to learn: the teacher's prediction where it is reliable, elsewhere mixed with the source model's.

        Args:
            teacher: Logits (B, K) or (B, K, H, W).
            source: Logits of the same shape.

        Returns:
            Logarithms of probabilities, of the same shape.
        """
        log_p, log_q = at_least_float32(teacher).log_softmax(dim=1), at_least_float32(source).log_softmax(dim=1)
        confidence, predicted = log_p.exp().max(dim=1)
        self._update_thresholds(log_p.exp(), confidence)
        reliable = confidence >= (self.threshold * self.frequency / self.frequency.max())[predicted]
        self._reliable = reliable.sum()
        trust = confidence / (confidence + log_q.exp().amax(dim=1))
        mixed = torch.logaddexp(log_p + trust.log()[:, None], log_q + (1 - trust).log()[:, None])
        return torch.where(reliable[:, None], log_p, mixed)

    def _update_thresholds(self, probabilities: Tensor, confidence: Tensor) -> None:
        share = 1 - self.hparams.threshold_momentum
        self.threshold.lerp_(confidence.quantile(self.hparams.quantile), share).clamp_(max=LARGEST_THRESHOLD)
        self.frequency.lerp_(per_class(probabilities), share)

    def diversity(self, target: Tensor) -> Tensor:
        """Weights (B, ...) of mean one for supervision (B, K, ...), the larger the less it is like the past's."""
        past = self.supervision.view(-1, *[1] * (target.ndim - 2))
        unlike = 1 - cosine_similarity(target, past, dim=1)
        spread = (unlike.amax() - unlike.amin()).clamp(min=1e-8)  # one image, or several alike
        weights = ((unlike - unlike.amin()) / spread).exp()
        self.supervision.lerp_(per_class(target), 1 - self.hparams.diversity_momentum)
        return weights / weights.mean()

    @torch.no_grad()
    def align(self) -> None:
        """Draw each tensor of the network towards its source values, in proportion to its relative drift."""
        source = self.initial_values(self.adapted)
        norm = torch.linalg.vector_norm
        drift = torch.stack([norm(p - p0) for p, p0 in zip(self.adapted, source, strict=True)])
        size = torch.stack([norm(p0) for p0 in source])
        relative = torch.where(size > 0, drift / size, 0)
        largest = relative.max().clamp(min=torch.finfo(relative.dtype).tiny)
        shares = self.hparams.alignment * torch.where(size > 0, relative / largest, 1)  # zeros have no relative drift
        for p, p0, share in zip(self.adapted, source, shares, strict=True):
            p.lerp_(p0, share)

    def passes(self) -> tuple[float, float]:
        """4 forward, 2 backward."""
        return (4, 2)

    def diagnostics(self) -> dict[str, float]:
        """The global threshold, and how many predictions of the last batch were reliable."""
        return {"threshold": float(self.threshold), "reliable": float(self._reliable)}
