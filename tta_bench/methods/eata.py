"""ETA and EATA: efficient test-time adaptation without forgetting (Niu et al., ICML 2022)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from tta_bench.functional import adapt_norm_layers, sgd_or_adam, softmax_entropy
from tta_bench.functional.segmentation import selected_images
from tta_bench.methods.base import TTAMethod
from tta_bench.methods.source_images import take_source_images
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming, SourceNeed


class ETA(TTAMethod):
    """Minimise the weighted entropy of images that are reliable and unlike those already learned from.

    An image is reliable if its entropy is below a margin, and unlike the others if its probabilities have a small
    cosine similarity to their running mean. Confident images have larger weights. This is EATA without its
    regulariser against forgetting.

    On a network that scores pixels, each pixel is selected on its own, and the running mean and the loss are taken
    over the pixels selected in the batch (our choice).

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-3 for batches of 64 in repository mr-eggplant/SAR, ViT-B on ImageNet-C.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        entropy_margin: E_0 as a share of ln(num_classes); the paper's 0.4.
        cosine_margin: epsilon, the largest cosine similarity to the running mean; the paper's 0.05 on ImageNet-C.
            Above 1 no image is rejected.
        seed: Not used; the method draws no random numbers.

    States:
        mean_probabilities (K,): running mean over the selected images, 0.1 of it from the last batch; empty before
        the first.

    Cost:
        1 forward pass and the share of selected images in backward passes per sample. An image of which any pixel is
        selected counts.

    Source:
        The paper's sample-adaptive weight; repositories mr-eggplant/EATA and mr-eggplant/SAR.

    Departures:
        ``reset`` also clears the running mean, which the released code keeps.
    """

    prediction_timing = PredictionTiming.LAST_FORWARD
    segments = True
    paper = "Niu et al., ICML 2022"
    provenance = "released code (mr-eggplant/SAR), ViT-B on ImageNet-C"
    mean_probabilities: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        entropy_margin: float = 0.4,
        cosine_margin: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._last = {"reliable": math.nan, "selected": math.nan}  # of the last batch
        self._selected = torch.zeros(1, dtype=torch.bool)

    def configure_adaptation(self) -> None:
        """Train the norm layers only."""
        self.adapted = adapt_norm_layers(self.backbone)
        self.add_state("mean_probabilities", torch.empty(0))

    def configure_optimizers(self) -> Optimizer:
        """SGD or Adam over the norm layers."""
        h = self.hparams
        return sgd_or_adam(self.adapted, h.optimizer, lr=h.lr, momentum=h.momentum)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) before the update."""
        logits = self.backbone(images)
        entropy = softmax_entropy(logits)
        margin = self.hparams.entropy_margin * math.log(logits.shape[1])
        reliable = entropy.detach() < margin
        probabilities = logits.detach().softmax(dim=1, dtype=entropy.dtype).movedim(1, -1)  # (B, K) or (B, H, W, K)
        selected = reliable & self.is_unlike(probabilities)
        entropy = entropy[selected]
        self._last = {"reliable": float(reliable.sum()), "selected": float(len(entropy))}
        self._selected = selected
        if len(entropy) > 0:
            self._remember(probabilities[selected].mean(dim=0))
            weights = (margin - entropy.detach()).exp()
            self.update((weights * entropy).mean() + self.penalty())
        return logits

    def is_unlike(self, probabilities: Tensor) -> Tensor:
        """Which of (..., K) are dissimilar to the running mean; all of them before there is one."""
        if len(self.mean_probabilities) == 0:
            return torch.ones_like(probabilities[..., 0], dtype=torch.bool)
        return cosine_similarity(probabilities, self.mean_probabilities, dim=-1) < self.hparams.cosine_margin

    def _remember(self, mean: Tensor) -> None:
        before = self.mean_probabilities if len(self.mean_probabilities) > 0 else mean
        self.mean_probabilities = 0.9 * before + 0.1 * mean

    def penalty(self) -> Tensor | float:
        """The regulariser that is added to the loss."""
        return 0.0

    def diagnostics(self) -> dict[str, float]:
        """Reliable and selected images (or pixels) of the last batch."""
        return self._last

    def passes(self) -> tuple[float, float]:
        """1 forward; backward for the selected images."""
        return (1, selected_images(self._selected) / len(self._selected))


class EATA(ETA):
    """ETA with a penalty on moving weights that matter to the source domain, by their Fisher information.

    Args:
        backbone: The source model.
        lr: Learning rate; 1e-3 for batches of 64 in repository mr-eggplant/SAR, ViT-B on ImageNet-C.
        optimizer: ``sgd`` or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD.
        entropy_margin: E_0 as a share of ln(num_classes); the paper's 0.4.
        cosine_margin: epsilon, the largest cosine similarity to the running mean; the paper's 0.05 on ImageNet-C.
        fisher_weight: beta, the weight of the penalty; the paper's 2000 on ImageNet-C.
        num_source: Number of unlabeled source images behind the Fisher information; the paper's 2000.
        seed: Not used; the method draws no random numbers.

    States:
        fisher (P,): importance of each adapted scalar, kept by ``reset``. mean_probabilities: as ETA.

    Cost:
        1 forward pass and the share of selected images in backward passes per sample.

    Source:
        The paper's anti-forgetting regulariser; repositories mr-eggplant/EATA and mr-eggplant/SAR.

    Departures:
        The Fisher information is the mean over batches of the squared gradient of a batch's mean loss, as in the
        released code; the paper writes the mean over images. ``reset`` as ETA.
    """

    source_need = SourceNeed.UNLABELED
    source_settings = ("num_source",)
    fisher: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-3,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        entropy_margin: float = 0.4,
        cosine_margin: float = 0.05,
        fisher_weight: float = 2000.0,
        num_source: int = 2000,
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone, lr=lr, optimizer=optimizer, momentum=momentum, entropy_margin=entropy_margin,
            cosine_margin=cosine_margin, seed=seed,
        )  # fmt: skip

    def configure_adaptation(self) -> None:
        """As ETA, and the importance of each adapted scalar."""
        super().configure_adaptation()
        self.add_state("fisher", torch.zeros_like(parameters_to_vector(self.adapted)), source=True)

    def least_source_images(self) -> int:
        """``num_source``: the Fisher information is of that many images, not of fewer."""
        return int(self.hparams.num_source)

    def measure_source(self, loader: Iterable[Tensor]) -> None:
        """Measure the Fisher information of the adapted parameters, with predicted classes as labels.

        Args:
            loader: Batches of source images (B, C, H, W) in [0, 1].

        Raises:
            ValueError: If fewer than ``num_source`` images arrive.
        """
        squares = []
        for images in take_source_images(self, loader, self.hparams.num_source):
            logits = self.backbone(images)
            self.backbone.zero_grad()
            self.backward(cross_entropy(logits, logits.argmax(dim=1)))
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.adapted]
            squares.append(parameters_to_vector(gradients) ** 2)
        self.backbone.zero_grad()
        self.fisher = torch.stack(squares).mean(dim=0)

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) before the update."""
        return super().forward_and_adapt(images)

    def penalty(self) -> Tensor:
        """Squared distance to the source weights, each scalar weighted by its importance."""
        source = parameters_to_vector(self.initial_values(self.adapted))
        moved = parameters_to_vector(self.adapted) - source
        return self.hparams.fisher_weight * (self.fisher * moved**2).sum()
