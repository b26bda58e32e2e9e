"""Trainings that are cut and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tta_bench.training.core import SourceTraining


def cut_short(
    train: Callable[[], object], kind: type[SourceTraining], error: type[BaseException] = RuntimeError
) -> None:
    """Run a training that ends with an error at the second batch of its second epoch."""
    step = kind.training_step

    def stop(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 1:
            raise error("cut")
        return step(self, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "training_step", stop)
        with pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit)):
            train()


def different_weights(ours: Path, theirs: Path) -> list[str]:
    """Names of the weights in which two files differ."""
    ours, theirs = load_file(ours), load_file(theirs)
    assert ours.keys() == theirs.keys()
    return [name for name, value in theirs.items() if not torch.equal(value, ours[name])]
