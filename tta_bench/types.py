"""The words that all layers share: batches of a stream, outputs of a method, declared properties of methods."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from torch import Tensor


class PredictionTiming(StrEnum):
    """Which of a batch's own updates its prediction has already seen."""

    BEFORE_UPDATE = "before_update"  # none of them
    LAST_FORWARD = "last_forward"  # all but the last: the prediction is the forward pass of the last update
    AFTER_UPDATE = "after_update"  # all of them; costs one more forward pass


class OutputKind(StrEnum):
    """What a method's scores are; the argmax reads the same, a calibration error does not."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"


class SourceNeed(StrEnum):
    """What a method sees of the source domain before the stream starts."""

    NOTHING = "nothing"
    UNLABELED = "unlabeled images"
    LABELED = "labeled images"


class StreamBatch(NamedTuple):
    """One batch as it arrives."""

    images: Tensor  # (B, C, H, W) uint8, in the size that the data set has
    labels: Tensor  # (B,) int64, or (B, H, W) uint8 with 255 where a pixel does not count; never for methods
    domain_ids: Tensor  # (B,) int64, position in Schedule.domains; for callbacks, never for methods
    step: int  # position in the stream


class StepOutput(NamedTuple):
    """What `test_step` hands to the callbacks."""

    scores: Tensor  # (B, K), or (B, K, H, W) for every pixel; detached
