"""Mathematics without state. Imports torch only."""

from tta_bench.functional.entropy import softmax_entropy
from tta_bench.functional.parameters import adapt_norm_layers, norm_layers
from tta_bench.functional.statistics import Statistics, batch_statistics, statistics_distance

__all__ = [
    "Statistics",
    "adapt_norm_layers",
    "batch_statistics",
    "norm_layers",
    "softmax_entropy",
    "statistics_distance",
]
