"""VDP: visual domain prompts for continual test-time adaptation (Gan et al., AAAI 2023)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from tta_bench.functional import lerp, symmetric_cross_entropy
from tta_bench.functional.pixels import labeled_cross_entropy
from tta_bench.functional.segmentation import resized
from tta_bench.functional.training_views import training_pair
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.warm_up import warm_up
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming, SourceNeed


class VDP(TTAMethod):
    """Learn two prompts that are added to the pixels of a frozen network: one of the domain, one of all domains.

    A teacher, the average of past prompts, gives the targets. The domain-specific prompt starts afresh when the
    teacher's confidence jumps; the domain-agnostic prompt is warmed up on the source, and held where it mattered to
    the domains before. No code was released. This is a re-implementation from the public descriptions, and every
    constant is ours.

    Args:
        backbone: The source model, which stays frozen.
        lr_specific: Learning rate of Adam for the domain-specific prompt.
        lr_agnostic: Learning rate of Adam for the domain-agnostic prompt.
        grid: Side of the grid of cells that a prompt lives on. It is stretched over images of any size.
        frame_width: Width in cells of the frame around the image that is learned. The defaults give 300 cells, 1,800
            scalars in two prompts of three channels, which is the number that DPCore's paper reports.
        teacher_momentum: Share of the old prompts in the teacher's.
        penalty: lambda, weight of the squared moves of the domain-agnostic prompt.
        damping: xi; keeps the importance of a pixel that hardly moved finite.
        jump: Change of the mean confidence between two batches above which the domain has changed.
        warmup_steps: Updates of the domain-agnostic prompt on labeled source images. With 0 it starts at zero.
        warmup_lr: Learning rate of Adam in the warm-up.
        seed: Seed of the augmentations in the warm-up.

    Raises:
        ValueError: If the grid is too small for its frame.

    States:
        teacher_specific, teacher_agnostic (C, M): the teacher's prompts, of M cells. importance, anchor, credit
        (C, M): Lambda, omega* and r of the domain-agnostic prompt. confidence: of the last batch, empty before the
        first. cells (M,): where the frame is.

    Cost:
        2 forward and 1 backward pass per sample.

    Source:
        The paper's abstract and descriptions of it, of which DPCore's (Zhang et al., ICML 2025) has the warm-up on the
        source and the number of parameters; the importance of Zenke et al., ICML 2017, Eq. 3-5.

    Departures:
        Without the paper's code it is unknown how far this agrees with it, in particular in the position of the prompts
        in the image and the length of the warm-up. The cross-entropy with the teacher is symmetric, because the plain
        one has no gradient while student and teacher are equal, and they start equal.
        An entry of the domain-agnostic prompt whose moves raised the loss counts as unimportant. A new domain also
        forgets the optimizer's moments. Where every pixel has scores, losses and confidences are means over pixels.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    source_need = SourceNeed.LABELED
    source_settings = ("grid", "frame_width", "warmup_steps", "warmup_lr", "seed")
    paper = "Gan et al., AAAI 2023"
    provenance = "re-implementation; defaults ours"
    teacher_specific: Tensor
    teacher_agnostic: Tensor
    importance: Tensor
    anchor: Tensor
    credit: Tensor
    confidence: Tensor
    cells: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr_specific: float = 1e-3,
        lr_agnostic: float = 1e-4,
        grid: int = 28,
        frame_width: int = 3,
        teacher_momentum: float = 0.999,
        penalty: float = 1.0,
        damping: float = 1e-3,
        jump: float = 0.1,
        warmup_steps: int = 1000,
        warmup_lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        if not 1 <= frame_width <= grid / 2:
            raise ValueError(f"a frame of {frame_width} cells does not fit a grid of {grid}: lower method.frame_width")
        self._changed = False

    def configure_adaptation(self) -> None:
        """Freeze the network; declare the prompts, which start at zero, and what is remembered of them."""
        grid, width = self.hparams.grid, self.hparams.frame_width
        self.backbone.requires_grad_(False)
        is_frame = torch.ones(grid, grid, dtype=torch.bool)
        is_frame[width : grid - width, width : grid - width] = False
        self.add_state("cells", is_frame.flatten().nonzero()[:, 0])
        zeros = torch.zeros(len(self.backbone.normalize.mean), len(self.cells), dtype=self.backbone.dtype)
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

    def measure_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train the domain-agnostic prompt with cross-entropy on cropped and mirrored source images.

        Args:
            loader: Batches of images (B, C, H, W) in [0, 1] and labels (B,) or (B, H, W).
        """
        optimizer = Adam([self.agnostic], lr=self.hparams.warmup_lr)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            view, seen_labels = training_pair(images, labels, self.setup_rng, crop=0.6)
            return labeled_cross_entropy(self.backbone(self.prompted(view, self.agnostic)), seen_labels)

        warm_up(self, loader, optimizer, loss, self.hparams.warmup_steps)
        for follower in (self.teacher_agnostic, self.anchor):
            follower.copy_(self.agnostic.detach())

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K, ...) under the teacher's prompts before the update."""
        with torch.no_grad():
            target = self.backbone(self.prompted(images, self.teacher_specific + self.teacher_agnostic))
        logits = self.backbone(self.prompted(images, self.specific + self.agnostic))
        self._learn(symmetric_cross_entropy(logits, target).mean())
        self.notice_change(target)
        return target

    def prompted(self, images: Tensor, prompt: Tensor) -> Tensor:
        """Add a prompt (C, M), stretched to their size, to images (B, C, H, W)."""
        grid = self.hparams.grid
        canvas = prompt.new_zeros(len(prompt), grid**2).index_copy(1, self.cells, prompt)
        return images + resized(canvas.view(1, -1, grid, grid), (images.shape[-2], images.shape[-1]))

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
    def notice_change(self, logits: Tensor) -> None:
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
