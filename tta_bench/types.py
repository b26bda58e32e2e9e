"""Types shared by all layers: batches of a stream, outputs of a method, declared properties of methods."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from torch import Tensor


class PredictionTiming(StrEnum):
    """Updates on a batch that precede its prediction."""

    BEFORE_UPDATE = "before_update"  # none
    LAST_FORWARD = "last_forward"  # all but the last: the prediction is the forward pass of the last update
    AFTER_UPDATE = "after_update"  # all, at the cost of one more forward pass


class OutputKind(StrEnum):
    """Kind of a method's scores; it does not matter for the argmax, but for the calibration error."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities (B, K, ...) from scores of this kind; classes are dimension 1."""
        return scores.softmax(dim=1) if self is OutputKind.LOGITS else scores


class SourceNeed(StrEnum):
    """Data of the source domain that a method uses before the stream starts."""

    NOTHING = "nothing"
    UNLABELED = "unlabeled images"
    LABELED = "labeled images"


class StreamBatch(NamedTuple):
    """One batch of a stream."""

    images: Tensor  # (B, C, H, W) uint8, in the size of the data set
    labels: Tensor  # (B,) int64, or (B, H, W) uint8 with 255 for ignored pixels; never for methods
    domain_ids: Tensor  # (B,) int64, index into Schedule.domains; for callbacks, never for methods
    step: int  # position in the stream


class StepOutput(NamedTuple):
    """Output of ``test_step`` for the callbacks."""

    scores: Tensor  # (B, K), or (B, K, H, W) for segmentation; detached
