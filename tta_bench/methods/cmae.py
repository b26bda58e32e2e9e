"""Continual-MAE: adaptive distribution masked autoencoders (Liu et al., CVPR 2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import Adam, Optimizer

from tta_bench.functional import (
    adapt_weights_and_biases,
    soft_cross_entropy,
    stochastic_restore,
    symmetric_cross_entropy,
)
from tta_bench.functional.augment import View, random_view
from tta_bench.functional.entropy import at_least_float32
from tta_bench.functional.hog import hog_dim, hog_targets
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.types import PredictionTiming


class CMAE(TTAMethod):
    """Mask the most uncertain patches, and learn the prediction and the hidden content from the remaining ones.

    Two losses on the masked images: consistency with the prediction for the whole images, and reconstruction of the
    hidden patches' histograms of oriented gradients.

    Args:
        backbone: The source model; must be a vision transformer or a SegFormer.
        lr: Learning rate of the network's weights and biases. Ours: 1e-6; the released code has 1e-5 on CIFAR10-C.
        lr_reconstruction: Learning rate of the mask token and the reconstruction layer. Ours: 1e-4; the released
            code has ``lr`` for all.
        mask_ratio: r; of the N patches of an image, floor(r N) are hidden. Released code.
        reconstruction_weight: Weight of the reconstruction; 0.5 in the released script.
        consistency: ``symmetric``, as CoTTA's ImageNet code (ours), or ``one_sided``, cross-entropy with the
            prediction for the whole image as target (released code).
        restore_probability: Probability that a weight or bias of the network returns to its source value after a
            step. Ours: 0.001, CoTTA's on ImageNet-C; the released code has 0.01 on CIFAR10-C.
        num_views: Augmented views behind a patch's uncertainty; 10 in the released code.
        views: Kind of the views, see ``random_view``.
        seed: Seed of the views, of the restoring, and of the reconstruction layer.

    Cost:
        ``num_views`` + 2 forward and 1 backward pass per sample.

    Source:
        Sec. 3 of the paper; repository RanXu2000/continual-mae, which has CIFAR10-C only.

    Departures:
        The released code predicts with a copy of the network that it sets equal to it after every step (its average
        of weights is configured and unused); here the network itself predicts, which is the same. Views also move
        patches, so that the uncertainty includes that of the position, as in the released code. Cells of the histograms
        are 8 pixels wide where that divides the patch size, else the largest divisor below 8. In a SegFormer (ours) a
        patch is the square of 32 pixels behind a position of the last map: it is painted over in a colour that is
        learned, starting at the mean, and reconstructed from this position; the consistency is a mean over pixels,
        and views leave pixels in their places.
    """

    prediction_timing = PredictionTiming.BEFORE_UPDATE
    segments = True
    paper = "Liu et al., CVPR 2024"
    provenance = "released code (RanXu2000/continual-mae), CIFAR10-C; ImageNet values ours"

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 1e-6,
        lr_reconstruction: float = 1e-4,
        mask_ratio: float = 0.5,
        reconstruction_weight: float = 0.5,
        consistency: Literal["symmetric", "one_sided"] = "symmetric",
        restore_probability: float = 0.001,
        num_views: int = 10,
        views: View = "cotta",
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, seed=seed)
        self.save_hyperparameters(ignore="backbone", logger=False)
        self._last = {"consistency": torch.tensor(torch.nan), "reconstruction": torch.tensor(torch.nan)}

    def configure_adaptation(self) -> None:
        """Train the weights and biases of the network, a mask token and a layer that reconstructs."""
        if self.backbone.mask_size is None:
            raise ValueError("Continual-MAE hides patches, so it needs a vision transformer or a SegFormer")
        self.adapted = adapt_weights_and_biases(self.backbone)
        self.patch_size, dtype = self.backbone.mask_size, self.backbone.dtype
        self.mask_token = nn.Parameter(torch.zeros(self.backbone.mask_dim, dtype=dtype))
        self.reconstruct = nn.utils.skip_init(
            nn.Linear, self.backbone.patch_dim, hog_dim(self.patch_size), dtype=dtype
        )  # its initialisation would draw from the global generator
        nn.init.trunc_normal_(self.reconstruct.weight, std=0.02, generator=self.setup_rng)
        nn.init.zeros_(self.reconstruct.bias)

    def configure_optimizers(self) -> Optimizer:
        """Adam with a learning rate for the network and one for what is added to it."""
        added = [self.mask_token, *self.reconstruct.parameters()]
        return Adam(
            [
                {"params": self.adapted, "lr": self.hparams.lr},
                {"params": added, "lr": self.hparams.lr_reconstruction},
            ]
        )

    def forward_and_adapt(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K) or (B, K, H, W) for the whole images, before the update."""
        with torch.no_grad():
            mask = self.choose_mask(images)
            logits = self.backbone(images)
        features, patches = self.backbone.encode_patches(self.backbone.embed_masked(images, mask, self.mask_token))
        consistency = self._consistency(self.backbone.classify(features), logits).mean()
        reconstruction = self.reconstruction_loss(patches, images, mask)
        self.update(consistency + self.hparams.reconstruction_weight * reconstruction)
        self._restore()
        self._last = {"consistency": consistency.detach(), "reconstruction": reconstruction.detach()}
        return logits

    def choose_mask(self, images: Tensor) -> Tensor:
        """The floor(r N) patches of each image that vary most over views: (B, N) bool."""
        views = []
        for _ in range(self.hparams.num_views):
            view = random_view(images, self.hparams.views, self.rng, in_place=self.backbone.segments)
            _, patches = self.backbone.encode_patches(self.backbone.embed(view))
            views.append(at_least_float32(patches).mean(dim=2))  # not 0, for the final norm weighs channels unevenly
        uncertainty = torch.stack(views).var(dim=0)
        count = int(self.hparams.mask_ratio * uncertainty.shape[1])
        if count == 0:
            raise ValueError(f"a mask_ratio of {self.hparams.mask_ratio} hides none of {uncertainty.shape[1]} patches")
        hidden = uncertainty.topk(count, dim=1).indices
        return torch.zeros_like(uncertainty, dtype=torch.bool).scatter_(1, hidden, True)

    def _consistency(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.hparams.consistency == "symmetric":
            return symmetric_cross_entropy(logits, target)
        return soft_cross_entropy(logits, target)

    def reconstruction_loss(self, patches: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """Mean squared error over the hidden patches."""
        predicted = at_least_float32(self.reconstruct(patches))
        error = (predicted - hog_targets(self._filled(images), self.patch_size)).square().mean(dim=2)
        return (error * mask).sum() / mask.sum()

    def _filled(self, images: Tensor) -> Tensor:
        """Images whose last row and column of patches are whole, by repeating the border."""
        height, width = images.shape[-2:]
        return pad(images, [0, -width % self.patch_size, 0, -height % self.patch_size], mode="replicate")

    def _restore(self) -> None:
        rng, probability = self.device_rng(), self.hparams.restore_probability
        stochastic_restore(
            self.adapted,
            self.initial_values(self.adapted),
            lambda p: torch.rand(p.shape, generator=rng, device=p.device) < probability,
        )

    def passes(self) -> tuple[float, float]:
        """``num_views`` + 2 forward, 1 backward."""
        return (self.hparams.num_views + 2, 1)

    def diagnostics(self) -> dict[str, float]:
        """The two losses of the last batch."""
        return {name: float(value) for name, value in self._last.items()}
