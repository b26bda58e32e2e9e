"""Record counts, errors and cost of every batch, on disk and with all loggers."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import Logger, WandbLogger

from tta_bench.callbacks.counts import count_images, count_pixels
from tta_bench.callbacks.label_free import LabelFree
from tta_bench.datasets.base import has_unlabelled
from tta_bench.methods.base import TTAMethod
from tta_bench.results.confusion import IouTally
from tta_bench.results.rows import BatchRow, Tally, logged_numbers
from tta_bench.results.run_folder import RowWriter
from tta_bench.types import StepOutput, StreamBatch


class AdaptationMonitor(L.Callback):
    """Records errors per domain, passes, time and diagnostics of every batch, and for segmentation the IoU.

    They are logged on the step axis of the stream: ``stream/step``, ``stream/running_error``, ``stream/running_iou``,
    ``domain/<name>`` (error so far), ``domain/<name>_iou``, ``cost/...`` and ``method/...``.

    Args:
        domains: Names of the domains by id; None takes them from the trainer's DataModule.
        rows: Path of ``batches.csv``; None keeps the counts in memory only.

    Attributes:
        tally: The counts so far.
        last: The last row.
        earlier: The rows of this run from before it was interrupted; they are counted as well.
    """

    def __init__(
        self, domains: Sequence[str] | None = None, rows: Path | None = None, label_free: LabelFree | None = None
    ) -> None:
        self._domains, self._path, self.label_free = domains, rows, label_free
        self.tally = Tally()
        self.last: BatchRow | None = None
        self.earlier: Sequence[BatchRow] = ()
        self._writer: RowWriter | None = None
        self._before = (0, 0, 0.0)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting, from zero or from the earlier rows of a resumed run."""
        self._names = tuple(self._domains or trainer.datamodule.schedule.domains)
        data = getattr(trainer.datamodule, "domains", None)
        self._partly = data is None or has_unlabelled(data)
        self.tally, self.last = Tally(_iou_tally(trainer)), self.earlier[-1] if self.earlier else None
        for row in self.earlier:
            self.tally.add(row)
        if self._path is not None and trainer.is_global_zero:  # all ranks have the same counts
            self._writer = RowWriter(self._path, goes_on=bool(self.earlier))
        if self.label_free is not None:
            before = self.last.label_free if self.last else None
            self.label_free.start(trainer, pl_module.device, int(before["last_class"]) if before else None)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):  # W&B's own step may only increase, so it is never passed
                logger.experiment.define_metric("stream/step")
                logger.experiment.define_metric("*", step_metric="stream/step")
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: StreamBatch, *_: Any
    ) -> None:
        """Record the counts before the batch."""
        meter = _method(pl_module).backbone.meter
        self._before = (meter.forward_samples, meter.backward_samples, _now(pl_module.device))

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: StepOutput,
        batch: StreamBatch,
        *_: Any,
    ) -> None:
        """Count, write and log the batch."""
        method, (forward, backward, started) = _method(pl_module), self._before
        seconds = _now(pl_module.device) - started
        count = count_images if batch.labels.ndim == 1 else count_pixels
        counts = count(outputs.scores, method.output_kind, batch, self._names)
        self.last = BatchRow(
            step=batch.step,
            by_domain=counts.by_domain,
            labelled=counts.labelled if self._partly else None,
            forward_samples=method.backbone.meter.forward_samples - forward,
            backward_samples=method.backbone.meter.backward_samples - backward,
            seconds=seconds,
            diagnostics=method.diagnostics(),
            top_class_share=counts.top_class_share,
            calibration=counts.calibration,
            confusion=counts.confusion,
            label_free=self.label_free.figures(outputs.scores, method.output_kind, batch) if self.label_free else None,
        )
        self.tally.add(self.last)
        if self._writer is not None:
            self._writer.write(self.last, self.tally)
        for logger in trainer.loggers:
            log(logger, self._metrics(), step=batch.step)

    def _metrics(self) -> dict[str, float]:
        assert self.last is not None
        return {**logged_numbers(self.last, self.tally), "cost/peak_memory_bytes": peak_memory_bytes()}

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the file: Lightning does not call ``teardown`` after a failure."""
        self.teardown(trainer, pl_module, "test")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def log(logger: Logger, metrics: dict[str, float], step: int) -> None:
    """Log metrics on the stream's step axis; W&B takes the axis from the metrics themselves."""
    if isinstance(logger, WandbLogger):
        logger.experiment.log(metrics)
    else:
        logger.log_metrics(metrics, step=step)


def peak_memory_bytes() -> int:
    """Peak memory of the process in bytes: allocated on the GPU if one is used, otherwise resident in RAM."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _iou_tally(trainer: L.Trainer) -> IouTally | None:
    """A tally of pixels for segmentation data, per round if the stream is repeated; None for classification."""
    data = trainer.datamodule
    if (classes := getattr(getattr(data, "domains", None), "classes", None)) is None:
        return None
    return IouTally(classes, len(data.schedule) // data.schedule.params.get("rounds", 1))


def _method(module: L.LightningModule) -> TTAMethod:
    if not isinstance(module, TTAMethod):
        raise TypeError(f"AdaptationMonitor expects a TTAMethod, got {type(module).__name__}")
    return module


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
