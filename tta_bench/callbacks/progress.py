"""A live progress bar of the stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
from rich.console import Console
from rich.progress import MofNCompleteColumn

from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.console import progress_bar, say


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        batch: Number of batches that are done.
        total: Number of batches of the stream.
        note: Domain, score and coreset size.
        speed: Batches per second in this process.
        resumed: The batch at which this process began.
    """

    batch: int
    total: int
    note: str = ""
    speed: float = 0.0
    resumed: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the end; None before the first batch."""
        return (self.total - self.batch) / self.speed if self.speed else None


class StreamProgress(L.Callback):
    """Shows the current domain, the error or mean IoU and the coreset size. Without a terminal, prints periodic lines.

    Args:
        title: Title of the bar, e.g. ``dpcore seed 0``.
        monitor: The monitor of the same run; it must come before this callback in the trainer's list.
        console: Where to print.
        every: Seconds between two lines if there is no terminal.
        watch: Called at the start and after every batch.
    """

    def __init__(
        self,
        title: str,
        monitor: AdaptationMonitor,
        console: Console,
        every: float = 30.0,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        self.title, self.monitor, self.console, self.every, self.watch = title, monitor, console, every, watch
        self._progress = progress_bar(console, MofNCompleteColumn(), "{task.fields[note]}", transient=False)
        self._printed = 0.0

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the bar, empty or filled up to the point where the run resumes."""
        before = len(self.monitor.earlier)
        self._total = before + int(sum(trainer.num_test_batches))
        note = f"resumed at batch {before}" if before else ""
        self._task = self._progress.add_task(self.title, total=self._total, completed=before, note=note)
        self._progress.start()
        self._printed = self._started = time.monotonic()
        self._before = before
        if self.watch is not None:
            self.watch(Progress(before, self._total, note, resumed=before))

    def on_test_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Advance the bar by one batch."""
        row, tally = self.monitor.last, self.monitor.tally
        if row is None:
            return
        domain = row.domain if len(row.by_domain) == 1 else "mixed"
        size = "" if tally.coreset_size is None else f"  coreset {tally.coreset_size:.0f}"
        score = f"mIoU {tally.iou.pooled or 0:5.1f} %" if tally.iou else f"error {tally.sample_error:5.1f} %"
        note = f"{domain:<17} {score if any(tally.labelled.values()) else 'no labels'}{size}"
        self._progress.update(self._task, advance=1, note=note)
        if self.watch is not None:
            done = len(tally.seconds)
            speed = (done - self._before) / max(time.monotonic() - self._started, 1e-9)
            self.watch(Progress(done, self._total, note, speed, self._before))
        if not self.console.is_terminal and time.monotonic() - self._printed > self.every:
            self._printed = time.monotonic()
            say(self.console, f"{self.title}: {len(tally.seconds)}/{self._total}  {note}")

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Free the terminal for the next run: Lightning does not call ``teardown`` after a failure."""
        self.teardown(trainer, pl_module, "test")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the last state of the bar on the screen."""
        self._progress.stop()
