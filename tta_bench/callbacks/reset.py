"""Policies that reset a method from outside; the method itself never knows its position in the stream."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import lightning.pytorch as L

from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.methods.base import TTAMethod
from tta_bench.types import StreamBatch


class ResetAtBoundaries(L.Callback):
    """Resets the method whenever the domain changes. An oracle: the boundaries of a real stream are unknown.

    Args:
        monitor: The monitor of the same run, which knows the last domain; it must come before this callback in the
            trainer's list.

    Source: The domain-specific prompts of DPCore (Zhang et al., ICML 2025), appendix.
    """

    def __init__(self, monitor: AdaptationMonitor) -> None:
        self.monitor = monitor

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: StreamBatch, *_: Any
    ) -> None:
        """Reset if the domains of this batch differ from those of the last one."""
        names = trainer.datamodule.schedule.domains
        domains = {names[int(d)] for d in batch.domain_ids.unique()}
        last = self.monitor.last
        if last is not None and set(last.by_domain) != domains and isinstance(pl_module, TTAMethod):
            pl_module.reset()


class FreezeAfterFirstDomain(L.Callback):
    """Lets the method learn only from the first domain: every later batch starts from the state at that domain's end.

    An oracle: it is unknown where the first domain of a real stream ends. What a method learns on a later batch affects
    the prediction of that batch, if the method predicts after its update, and is then discarded.

    Passes are counted as they are executed, discarded updates included: they are the cost of this run, not that of a
    deployed network with frozen prompts, which needs one forward pass per image after the first domain.

    Args:
        monitor: The monitor of the same run, which knows the domains seen so far; it must come before this callback in
            the trainer's list.

    Source: The prompt learned on gaussian noise in DPCore (Zhang et al., ICML 2025), appendix.
    """

    def __init__(self, monitor: AdaptationMonitor) -> None:
        self.monitor = monitor
        self._frozen: dict[str, Any] | None = None

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: StreamBatch, *_: Any
    ) -> None:
        """Keep the state if the first domain has ended; a resumed run finds that state in its method."""
        names = trainer.datamodule.schedule.domains
        domains = {names[int(d)] for d in batch.domain_ids.unique()} | set(self.monitor.tally.samples)
        ended = self.monitor.last is not None and len(domains) > 1
        self._frozen = deepcopy(pl_module.adaptation_state()) if ended and isinstance(pl_module, TTAMethod) else None

    def on_test_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Restore the state that was kept."""
        if self._frozen is not None and isinstance(pl_module, TTAMethod):
            pl_module.load_adaptation_state(self._frozen)
