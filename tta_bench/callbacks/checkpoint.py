"""Periodically write the state of a run, and resume a run from it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tta_bench.callbacks.interrupts import Interrupted, Interrupts
from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.callbacks.state_files import FORMAT, StateFiles
from tta_bench.files import sync
from tta_bench.methods.base import TTAMethod
from tta_bench.results.rows import BatchRow

MAX_SHARE = 0.02  # largest share of a run's time that is spent on writing states


@dataclass(frozen=True)
class Resumed:
    """The point from which a run is resumed.

    Attributes:
        state: The state written by ``StreamCheckpoint``.
        rows: The rows of all earlier batches.
    """

    state: dict[str, Any]
    rows: Sequence[BatchRow]

    @property
    def step(self) -> int:
        """Index of the next batch."""
        return len(self.rows)


@dataclass(eq=False)
class StreamCheckpoint(L.Callback):
    """Writes the state of a run, and starts a run from a state. Must be the last callback in the trainer's list.

    Rows are flushed to disk before the state, so that a state never counts rows that are missing. Rows beyond the
    state are cut off when the run resumes, and are then reproduced exactly. No state is written after the last batch.

    Args:
        files: Where states are written.
        monitor: The monitor of the same run.
        every: Batches between two states; None uses ``seconds``.
        seconds: Seconds between two states; None writes one only on an interrupt. The interval is extended if writing
            would take more than 2 % of the time.
        facts: Further content of the state: tensors, numbers and strings.
        resumed: The point to resume from; on several devices only rank 0 needs it.
        interrupts: Reports signals; after one, the state is written and the run ended at the end of the batch.
    """

    files: StateFiles
    monitor: AdaptationMonitor
    every: int | None = None
    seconds: float | None = 60.0
    facts: dict[str, Any] = field(default_factory=dict)
    resumed: Resumed | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Restore stream, method and counts from the state, on all ranks."""
        resumed: Resumed | None = trainer.strategy.broadcast(self.resumed)
        if resumed is not None:
            assert isinstance(pl_module, TTAMethod)
            trainer.datamodule.start = resumed.step
            pl_module.start_from(resumed.state["adaptation"])
            self.monitor.earlier = resumed.rows

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._due = time.monotonic() + (self.seconds or 0)

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Write the state if it is due, and end the run if it was interrupted."""
        if batch_idx + 1 == sum(trainer.num_test_batches):
            return
        interrupted = self.interrupts.signum is not None
        if trainer.world_size > 1:  # all ranks must end at the same batch, or the others wait forever
            interrupted = trainer.strategy.reduce_boolean_decision(interrupted, all=False)
        if interrupted or self._is_due(batch.step):
            self._write(trainer, pl_module, batch.step)
        if interrupted:
            raise Interrupted(self.interrupts.signum or signal.SIGTERM, batch.step + 1)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write the state if Lightning received a SIGTERM just after the end of a batch."""
        if isinstance(exception, SIGTERMException) and self.monitor.last is not None:
            self._write(trainer, pl_module, self.monitor.last.step)

    def explain(self, error: BaseException) -> BaseException:
        """The error to show to the user: Lightning's own exception for SIGTERM has no message."""
        if isinstance(error, SIGTERMException) and self.monitor.last is not None:
            return Interrupted(signal.SIGTERM, self.monitor.last.step + 1)
        return error

    def _is_due(self, step: int) -> bool:
        if self.every is not None:
            return (step + 1) % self.every == 0
        return self.seconds is not None and time.monotonic() >= self._due

    def _write(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> None:
        assert isinstance(pl_module, TTAMethod)
        if not trainer.is_global_zero:
            return
        started = time.monotonic()
        state = {
            "format": FORMAT,
            "next_step": step + 1,
            "rows_bytes": sync(self.files.newest.with_name("batches.csv")),
            "adaptation": pl_module.adaptation_state(),
            **self.facts,
        }
        self.files.write(state)
        now = time.monotonic()
        self._due = now + max(self.seconds or 0, (now - started) / MAX_SHARE)
