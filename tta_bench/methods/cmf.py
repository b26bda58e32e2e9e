"""CMF: continual momentum filtering on parameter space (Lee & Chang, ICLR 2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tta_bench.functional import ema_update, lerp
from tta_bench.functional.augment import View
from tta_bench.methods.roid import ROID
from tta_bench.models.backbones.base import Backbone


class CMF(ROID):
    """ROID that returns to a hidden model instead of the source: a Kalman filter's estimate from the adapted weights.

    The hidden model drifts towards the source, is corrected by the adapted weights (as much as the filter trusts
    them), and the adapted weights move a little towards it.

    Args:
        backbone: The source model.
        lr: Learning rate; 2.5e-4 in the released configuration for ImageNet-C, which serves ViT-B too.
        optimizer: ``sgd`` (Nesterov's momentum) or ``adam`` (betas 0.9, 0.999).
        momentum: Momentum of SGD; 0.9 in the released code.
        source_momentum: alpha, the share of itself that the hidden model keeps before it is corrected, the rest is
            the source's; 0.99 in the released code.
        hidden_momentum: gamma, the share of themselves that the adapted weights keep, the rest is the hidden model's;
            0.99 in the released code.
        process_noise: q, variance that the hidden model gains in a step; 1 - q is that of the adapted weights. 0.005
            in the released code for ViT-B.
        temperature: As ROID.
        probability_momentum: As ROID.
        prior_correction: As ROID.
        views: As ROID.
        seed: Seed of the views.

    States:
        hidden: the hidden model. hidden_variance (): its variance. mean_probabilities (K,): as ROID.

    Cost:
        1 forward pass, another for the share of selected images, and twice that share in backward passes per sample.

    Source:
        The paper's filter; repository mariodoebler/test-time-adaptation.

    Departures:
        The released code scales ``process_noise`` with the number of adapted parameters, by 1 for ViT-B; here it is
        what is given. It keeps the hidden variance when it is reset; ``reset`` here forgets it. The hidden model
        shares the frozen weights, which are the source's in both. And ROID's.
    """

    paper = "Lee & Chang, ICLR 2024"
    hidden: Backbone
    hidden_variance: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        lr: float = 2.5e-4,
        optimizer: Literal["sgd", "adam"] = "sgd",
        momentum: float = 0.9,
        source_momentum: float = 0.99,
        hidden_momentum: float = 0.99,
        process_noise: float = 0.005,
        temperature: float = 1 / 3,
        probability_momentum: float = 0.9,
        prior_correction: Literal["logits", "probabilities", "none"] = "logits",
        views: View = "roid",
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone, lr=lr, optimizer=optimizer, momentum=momentum, source_momentum=source_momentum,
            temperature=temperature, probability_momentum=probability_momentum, prior_correction=prior_correction,
            views=views, seed=seed,
        )  # fmt: skip
        self._kept = 1.0  # beta of the last batch

    def configure_adaptation(self) -> None:
        """As ROID, and the hidden model with its variance."""
        super().configure_adaptation()
        self.add_copy("hidden")
        self.add_state("hidden_variance", torch.zeros((), dtype=self.mean_probabilities.dtype))

    def ensemble(self) -> None:
        """Predict and correct the hidden model, then move the adapted weights towards it."""
        h = self.hparams
        own = [p for p, q in zip(self.hidden.parameters(), self.backbone.parameters(), strict=True) if p is not q]
        lerp(own, self.initial_values(self.adapted), 1 - h.source_momentum)
        variance = h.source_momentum**2 * float(self.hidden_variance) + h.process_noise
        kept = (1 - h.process_noise) / (variance + 1 - h.process_noise)
        self._kept = 1.0 if kept >= 0.9999 else max(kept, 0.89)  # limits of the released code
        self.hidden_variance.fill_(self._kept * variance)
        ema_update(self.hidden, self.backbone, self._kept)
        lerp(self.adapted, own, 1 - h.hidden_momentum)

    def diagnostics(self) -> dict[str, float]:
        """As ROID, and the gain: what share of the hidden model came from the last batch's weights."""
        return {**super().diagnostics(), "kalman_gain": 1 - self._kept}
