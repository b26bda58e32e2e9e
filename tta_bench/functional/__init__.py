"""Mathematics without state. Imports torch and torchvision only."""

from tta_bench.functional.entropy import softmax_entropy
from tta_bench.functional.losses import (
    generalized_cross_entropy,
    hard_cross_entropy,
    soft_cross_entropy,
    soft_likelihood_ratio,
    symmetric_cross_entropy,
)
from tta_bench.functional.optimizers import sgd_or_adam
from tta_bench.functional.parameters import adapt_norm_layers, adapt_weights_and_biases, norm_layers
from tta_bench.functional.statistics import Statistics, batch_statistics, map_statistics, statistics_distance
from tta_bench.functional.weights import ema_update, lerp, sam_ascend, sam_return, stochastic_restore

__all__ = [
    "Statistics",
    "adapt_norm_layers",
    "adapt_weights_and_biases",
    "batch_statistics",
    "ema_update",
    "generalized_cross_entropy",
    "hard_cross_entropy",
    "lerp",
    "map_statistics",
    "norm_layers",
    "sam_ascend",
    "sam_return",
    "sgd_or_adam",
    "soft_cross_entropy",
    "soft_likelihood_ratio",
    "softmax_entropy",
    "statistics_distance",
    "stochastic_restore",
    "symmetric_cross_entropy",
]
