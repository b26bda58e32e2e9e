"""VDP: visual domain prompts for continual test-time adaptation (Gan et al., AAAI 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from tta_bench.functional import lerp, symmetric_cross_entropy
from tta_bench.functional.segmentation import resized
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming

STRETCHED = 128  # side in pixels of prompts for networks that score the pixels of images of any size


class VDP(TTAMethod):
    """Learn two prompts that are added to the pixels of a frozen network: one of the domain, one of all domains.

    A teacher, the average of past prompts, gives the targets. The domain-specific prompt starts afresh when the
    teacher's confidence jumps; the domain-agnostic prompt is held where it mattered to the domains before. No code
    was released and this is a re-implementation from the public description; every constant is ours.

    Args:
        backbone: The source model, which stays frozen.
        lr_specific: Learning rate of Adam for the domain-specific prompt.
        lr_agnostic: Learning rate of Adam for the domain-agnostic prompt.
        frame_width: Width of the prompts, frames around the image, as a share of its side; 16 of 224 pixels.
        teacher_momentum: Share of the old prompts in the teacher's.
        penalty: lambda, weight of the squared moves of the domain-agnostic prompt.
        damping: xi; keeps the importance of a pixel that hardly moved finite.
        jump: Change of the mean confidence between two batches above which the domain has changed.
        image_size: Side of the images in pixels; None takes the backbone's. A network that scores pixels takes any, and
            the prompts, of 128 pixels by default, are stretched over its images.
        seed: Unused: nothing is drawn.

    States:
        teacher_specific, teacher_agnostic (C, M): the teacher's prompts, of M pixels. importance, anchor, credit
        (C, M): Lambda, omega* and r of the domain-agnostic prompt. confidence: of the last batch, empty before the
        first. pixels (M,): where the frame is.

    Cost:
        2 forward and 1 backward pass per sample.

    Source:
        The paper's abstract and descriptions of it; the importance of Zenke et al., ICML 2017, Eq. 3-5.

    Departures:
        What of this is the paper's cannot be told without its code. The cross-entropy with the teacher is symmetric:
        the plain one has no gradient while student and teacher are equal, as both start, and none would ever come.
        An entry of the domain-agnostic prompt whose moves raised the loss counts as unimportant. A new domain also
        forgets the optimizer's moments. Where every pixel has scores, losses and confidences are means over pixels.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    paper = "Gan et al., AAAI 2023"
    provenance = "re-implementation; defaults ours"
    teacher_specific: Tensor
    teacher_agnostic: Tensor
    importance: Tensor
    anchor: Tensor
    credit: Tensor
    confidence: Tensor
    pixels: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr_specific: float = 1e-3,
        lr_agnostic: float = 1e-4,
        frame_width: float = 1 / 14,
        teacher_momentum: float = 0.999,
        penalty: float = 1.0,
        damping: float = 1e-3,
        jump: float = 0.1,
        image_size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._changed = False

    def configure_adaptation(self) -> None:
        """Freeze the network; declare the prompts, which start at zero, and what is remembered of them."""
        side = self.hparams.image_size or self.backbone.image_size or (STRETCHED if self.backbone.segments else None)
        if side is None:
            raise ValueError("VDP's prompts are as large as the images: set image_size, for this network takes any")
        self.backbone.requires_grad_(False)
        self.side: int = side
        width = max(1, round(self.hparams.frame_width * side))
        is_frame = torch.ones(side, side, dtype=torch.bool)
        is_frame[width:-width, width:-width] = False
        self.add_state("pixels", is_frame.flatten().nonzero()[:, 0])
        zeros = torch.zeros(len(self.backbone.normalize.mean), len(self.pixels), dtype=self.backbone.dtype)
        self.specific, self.agnostic = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        for name in ("teacher_specific", "teacher_agnostic", "importance", "anchor", "credit"):
            self.add_state(name, zeros)
        self.add_state("confidence", torch.empty(0))

    def configure_optimizers(self) -> Optimizer:
        """Adam with a learning rate for each prompt."""
        return Adam(
            [
                {"params": [self.specific], "lr": self.hparams.lr_specific},
                {"params": [self.agnostic], "lr": self.hparams.lr_agnostic},
            ]
        )

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K, ...) under the teacher's prompts before the update."""
        with torch.no_grad():
            target = self.backbone(self.prompted(images, self.teacher_specific + self.teacher_agnostic))
        logits = self.backbone(self.prompted(images, self.specific + self.agnostic))
        self._learn(symmetric_cross_entropy(logits, target).mean())
        self._notice_change(target)
        return target

    def prompted(self, images: Tensor, prompt: Tensor) -> Tensor:
        """Add a prompt (C, M) to the frame of each image (B, C, H, W)."""
        height, width = images.shape[-2:]
        if (height, width) != (self.side, self.side) and not self.backbone.segments:
            raise ValueError(
                f"VDP's prompts are for images of {self.side}x{self.side} pixels, not {height}x{width}: set image_size"
            )
        canvas = prompt.new_zeros(len(prompt), self.side**2).index_copy(1, self.pixels, prompt)
        return images + resized(canvas.view(1, -1, self.side, self.side), (height, width))

    def _learn(self, loss: Tensor) -> None:
        """Step both prompts, credit the moves of the domain-agnostic one, and let the teacher follow."""
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        self.backward(loss)
        assert self.agnostic.grad is not None
        gradient, before = self.agnostic.grad.clone(), self.agnostic.detach().clone()
        self.agnostic.grad += 2 * self.hparams.penalty * self.importance * (before - self.anchor)
        self.optimizer.step()
        self.credit -= gradient * (self.agnostic.detach() - before)  # how far the moves lowered the loss
        share = 1 - self.hparams.teacher_momentum
        lerp([self.teacher_specific, self.teacher_agnostic], [self.specific, self.agnostic], share)

    @torch.no_grad()
    def _notice_change(self, logits: Tensor) -> None:
        """Close the books of a domain when the teacher's mean confidence (batch after batch) jumps."""
        confidence = logits.softmax(dim=1, dtype=torch.float32).amax(dim=1).mean()
        known = len(self.confidence) > 0
        self._changed = known and bool((confidence - self.confidence[0]).abs() > self.hparams.jump)
        self.confidence = confidence[None]
        if not self._changed:
            return
        self.importance += self.credit.clamp(min=0) / ((self.agnostic - self.anchor) ** 2 + self.hparams.damping)
        self.anchor.copy_(self.agnostic)
        for forgotten in (self.credit, self.specific, self.teacher_specific):
            forgotten.zero_()
        self.restart_optimizer()

    def passes(self) -> tuple[float, float]:
        """2 forward, 1 backward."""
        return (2, 1)

    def diagnostics(self) -> dict[str, float]:
        """The teacher's mean confidence in the last batch, and whether it jumped."""
        confidence = float(self.confidence[0]) if len(self.confidence) > 0 else float("nan")
        return {"confidence": confidence, "domain_changed": float(self._changed)}
