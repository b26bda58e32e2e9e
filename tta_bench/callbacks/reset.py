"""Policies that reset a method from outside; a method itself never learns where it is in the stream."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as L

from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.methods.base import TTAMethod
from tta_bench.types import StreamBatch


class ResetAtBoundaries(L.Callback):
    """Resets the method whenever the domain changes. An oracle: nobody knows the boundaries of a real stream.

    Args:
        monitor: The monitor of the same run; it must stand before this callback, and knows the last domain.

    Source: The domain-specific prompts of DPCore (Zhang et al., ICML 2025), appendix.
    """

    def __init__(self, monitor: AdaptationMonitor) -> None:
        self.monitor = monitor

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: StreamBatch, *_: Any
    ) -> None:
        """Reset if this batch has other domains than the last one."""
        names = trainer.datamodule.schedule.domains
        domains = {names[int(d)] for d in batch.domain_ids.unique()}
        last = self.monitor.last
        if last is not None and set(last.by_domain) != domains and isinstance(pl_module, TTAMethod):
            pl_module.reset()
