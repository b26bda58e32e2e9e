"""RoTTA: robust test-time adaptation in dynamic scenarios (Yuan et al., CVPR 2023)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from tta_bench.functional import adapt_norm_layers, ema_update, soft_cross_entropy, softmax_entropy
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.memory import CSTU, cut_at_updates
from tta_bench.functional.pixels import per_image
from tta_bench.functional.robust_bn import following, use_robust_batch_norm
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class RoTTA(TTAMethod):
    """Learn from a category-balanced memory of recent and sure images, towards a teacher that changes slowly.

    Args:
        backbone: The source model.
        lr: Learning rate of Adam (betas 0.9, 0.999); released code, for batch norm networks.
        memory_size: N, the capacity of the memory; released code.
        update_every: Images of the stream from update to update; N in the released code.
        teacher_momentum: 1 - nu, the share of the teacher that an update keeps; released code.
        age_weight: lambda_t in the score of a stored image; released code.
        entropy_weight: lambda_u in the score of a stored image; released code.
        alpha: Share of a batch in the statistics of robust batch norm; released code. No effect without batch norm.
        views: Kind of view that the student sees; ``cotta`` is the published one. See ``random_view``.
        seed: Seed of the views.

    States:
        The teacher's weights, the memory, waiting () images since the last update, and the statistics of batch norm
        layers.

    Cost:
        1 + 2M / ``update_every`` forward passes and M / ``update_every`` backward passes per sample, with M <= N
        images in memory.

    Source:
        The paper's robust batch norm, category-balanced memory and training with timeliness; repositories
        BIT-DA/RoTTA and, for other norms than batch norm, mariodoebler/test-time-adaptation.

    Departures:
        Layer and group norms have no statistics to be robust; their affine parameters are trained. Dropout and
        stochastic depth stay off. Where every pixel has scores (ours): the memory holds whole images, under the class
        that most of their pixels are predicted to be and with the mean entropy of their pixels, so it stays far from
        full where few classes are ever the most frequent; the loss is a mean over pixels, and the student's view leaves
        them in their places.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    paper = "Yuan et al., CVPR 2023"
    provenance = "released code (BIT-DA/RoTTA), batch norm networks; none was published for ViT-B"
    teacher: Backbone
    waiting: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        memory_size: int = 64,
        update_every: int = 64,
        teacher_momentum: float = 0.999,
        age_weight: float = 1.0,
        entropy_weight: float = 1.0,
        alpha: float = 0.05,
        views: View = "cotta",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._passes = (0.0, 0.0)

    def passes(self) -> tuple[float, float]:
        """The teacher on the batch; teacher and student on the memory, for each update."""
        return self._passes

    def configure_adaptation(self) -> None:
        """Train the norm layers, robust ones in place of batch norm; copy a teacher; start an empty memory."""
        h = self.hparams
        use_robust_batch_norm(self.backbone, h.alpha)
        self.adapted = adapt_norm_layers(self.backbone)
        self.add_copy("teacher")
        self.add_state("waiting", torch.tensor(0))
        self.memory = CSTU(
            h.memory_size, self.backbone.num_classes, age_weight=h.age_weight, entropy_weight=h.entropy_weight
        )

    def configure_optimizers(self) -> Optimizer:
        """Adam over the norm layers."""
        return Adam(self.adapted, lr=self.hparams.lr)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> the teacher's logits (B, K) or (B, K, H, W), before its updates."""
        with torch.no_grad():
            logits = self.teacher(images)
        labels = logits.argmax(dim=1).reshape(len(images), -1).mode(dim=1).values
        entropies = per_image(softmax_entropy(logits))
        learned_from = 0
        for rows, due in cut_at_updates(int(self.waiting), len(images), self.hparams.update_every):
            self.memory.add(images[rows], labels[rows], entropies[rows])
            self.waiting = self.waiting + len(images[rows]) if not due else torch.zeros_like(self.waiting)
            if due:
                self._learn()
                learned_from += len(self.memory)
        self._passes = (1 + 2 * learned_from / len(images), learned_from / len(images))
        return logits

    def _learn(self) -> None:
        images = self.memory.images
        with following(self.backbone, self.teacher):
            with torch.no_grad():
                target = self.teacher(images)
            logits = self.backbone(random_view(images, self.hparams.views, self.rng, in_place=self.backbone.segments))
        timeliness = torch.sigmoid(-self.memory.ages / self.hparams.memory_size)
        self.update((timeliness * per_image(soft_cross_entropy(logits, target))).mean())
        ema_update(self.teacher, self.backbone, self.hparams.teacher_momentum)

    def diagnostics(self) -> dict[str, float]:
        """Images in memory."""
        return {"memory_size": float(len(self.memory))}
