"""Watching a method: counts, errors and cost of every batch, to disk and to all loggers."""

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

from tta_bench.methods.base import TTAMethod
from tta_bench.records import BINS, Row, RowWriter, Tally
from tta_bench.types import OutputKind, StepOutput, StreamBatch


class AdaptationMonitor(L.Callback):
    """Counts errors per domain, passes, seconds and the method's diagnostics, batch by batch.

    Loggers get them on a step axis of the stream: ``stream/step``, ``stream/running_error``,
    ``domain/<name>`` (error so far), ``cost/...`` and ``method/...``.

    Args:
        domains: Names of the domains by id; None asks the trainer's DataModule.
        rows: Where ``batches.csv`` goes; None keeps the counts in memory only.

    Attributes:
        tally: The counts so far.
        last: The last row.
        earlier: The rows of this run before it was interrupted, which count as if they had been seen now.
    """

    def __init__(self, domains: Sequence[str] | None = None, rows: Path | None = None) -> None:
        self._domains, self._path = domains, rows
        self.tally = Tally()
        self.last: Row | None = None
        self.earlier: Sequence[Row] = ()
        self._writer: RowWriter | None = None
        self._before = (0, 0, 0.0)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting: from zero, or from the rows of this run that are there."""
        self._names = tuple(self._domains or trainer.datamodule.schedule.domains)
        self.tally, self.last = Tally(), self.earlier[-1] if self.earlier else None
        for row in self.earlier:
            self.tally.add(row)
        if self._path is not None and trainer.is_global_zero:  # other ranks count the same
            self._writer = RowWriter(self._path, goes_on=bool(self.earlier))
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):  # W&B's own step must only increase, so it is never passed
                logger.experiment.define_metric("stream/step")
                logger.experiment.define_metric("*", step_metric="stream/step")
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: StreamBatch, *_: Any
    ) -> None:
        """Note the counts before the batch."""
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
        probabilities = outputs.scores.double()
        if method.output_kind is OutputKind.LOGITS:
            probabilities = probabilities.softmax(dim=1)
        confidence, predicted = probabilities.max(dim=1)
        right = (predicted == batch.labels).double()
        bins = (confidence * BINS).long().clamp(max=BINS - 1)
        d, k = len(self._names), probabilities.shape[1]
        numbers = torch.cat(
            [
                torch.bincount(batch.domain_ids, minlength=d).double(),
                torch.bincount(batch.domain_ids, weights=1 - right, minlength=d),
                torch.bincount(bins, minlength=BINS).double(),
                torch.bincount(bins, weights=confidence, minlength=BINS),
                torch.bincount(bins, weights=right, minlength=BINS),
                torch.bincount(predicted, minlength=k).amax(dim=0, keepdim=True).double(),
            ]
        ).tolist()  # fmt: skip  (one synchronisation)
        seen, wrong, binned = numbers[:d], numbers[d : 2 * d], numbers[2 * d : -1]
        calibration = zip(binned[:BINS], binned[BINS : 2 * BINS], binned[2 * BINS :], strict=True)
        self.last = Row(
            step=batch.step,
            by_domain={name: (int(n), int(w)) for name, n, w in zip(self._names, seen, wrong, strict=True) if n},
            forward_samples=method.backbone.meter.forward_samples - forward,
            backward_samples=method.backbone.meter.backward_samples - backward,
            seconds=seconds,
            diagnostics=method.diagnostics(),
            top_class_share=numbers[-1] / len(predicted),
            calibration={i: (int(n), c, int(r)) for i, (n, c, r) in enumerate(calibration) if n},
        )
        self.tally.add(self.last)
        if self._writer is not None:
            self._writer.write(self.last, self.tally)
        for logger in trainer.loggers:
            log(logger, self._metrics(), step=batch.step)

    def _metrics(self) -> dict[str, float]:
        assert self.last is not None
        row, errors = self.last, self.tally.domain_error
        return {
            "stream/step": row.step,
            "stream/error": 100 * row.wrong / row.samples,
            "stream/running_error": self.tally.sample_error,
            "stream/mean_error": self.tally.mean_error,
            "stream/calibration_error": self.tally.calibration_error,
            "stream/top_class_share": row.top_class_share,
            **{f"domain/{name}": errors[name] for name in row.by_domain},
            "cost/forward_per_sample": row.forward_samples / row.samples,
            "cost/backward_per_sample": row.backward_samples / row.samples,
            "cost/seconds": row.seconds,
            "cost/peak_memory_bytes": peak_memory_bytes(),
            **{f"method/{key}": value for key, value in row.diagnostics.items()},
        }

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the file: Lightning tears no callback down after a failure."""
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
    """Peak memory of the process: allocated on the GPU where one is used, else resident in RAM."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _method(module: L.LightningModule) -> TTAMethod:
    if not isinstance(module, TTAMethod):
        raise TypeError(f"AdaptationMonitor watches a TTAMethod, got {type(module).__name__}")
    return module


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
