"""One row per image: what was predicted, how confidently, and what the source model says."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from tta_bench.callbacks.label_free import LabelFree
from tta_bench.files import writing
from tta_bench.methods.base import TTAMethod
from tta_bench.types import StepOutput, StreamBatch

TOP = 5
COLUMNS = ("path", "step", "domain", "group", "label", "predicted", "confidence", "source_predicted")
TEXTS = ("path", "domain", "group")


class SavePredictions(L.Callback):
    """Writes ``predictions.csv``, batch by batch, which at the end becomes ``predictions.parquet`` if asked for.

    Classes are numbers. ``top1`` to ``top5`` are the most probable classes, ``score1`` to ``score5`` their
    probabilities; ``label`` and ``group`` are empty where an image has none.

    Args:
        path: ``predictions.csv``.
        label_free: Has the source model's scores of the batch; its monitor must come before this callback.
        earlier: Returns the number of batches before a resumed run was interrupted; later rows are written again.
        parquet: Whether to write a Parquet file instead.
    """

    def __init__(self, path: Path, label_free: LabelFree, earlier: Callable[[], int], parquet: bool) -> None:
        self.path, self.label_free, self.earlier, self.parquet = path, label_free, earlier, parquet

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the file; of a resumed run, keep the rows of the batches that are not repeated.

        Raises:
            ValueError: If some of these rows are missing.
        """
        if not trainer.is_global_zero:
            return
        kept = self._kept(int(trainer.datamodule.schedule.offsets[self.earlier()]))
        classes = min(TOP, pl_module.backbone.num_classes)
        tops = [f"{name}{k}" for k in range(1, classes + 1) for name in ("top", "score")]
        self._columns = [*COLUMNS, *tops]
        self._write(kept, "w")

    def _kept(self, rows: int) -> list[dict[str, Any]]:
        """The first rows of the file."""
        kept: list[dict[str, Any]] = []
        if rows and self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                kept = list(islice(csv.DictReader(file), rows))
        if len(kept) < rows:
            raise ValueError(f"{self.path} lacks rows of batches that are not repeated: resume=never starts over")
        return kept

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: StepOutput, batch: StreamBatch, *_: Any
    ) -> None:
        """Write the rows of a batch."""
        if trainer.is_global_zero:
            assert isinstance(pl_module, TTAMethod)
            self._write(list(self._rows(trainer.datamodule, pl_module, outputs, batch)), "a")

    def _rows(self, data: Any, method: TTAMethod, outputs: StepOutput, batch: StreamBatch) -> Iterator[dict[str, Any]]:
        probabilities = method.output_kind.probabilities(outputs.scores.double())
        values, classes = probabilities.topk((len(self._columns) - len(COLUMNS)) // 2, dim=1)
        assert self.label_free.source_scores is not None
        source = self.label_free.source_scores.argmax(dim=1).tolist()
        step, domains = data.schedule[batch.step], data.domains
        path_of = getattr(domains, "path", lambda domain, index: f"{domain}/{index}")
        group_of = getattr(domains, "group", lambda domain, index: None)
        columns = zip(
            step.domain_ids, step.indices, batch.labels.tolist(), source, values.tolist(), classes.tolist(), strict=True
        )
        for domain_id, index, label, by_source, own_values, own_classes in columns:
            name = data.schedule.domains[domain_id]
            tops = [x for pair in zip(own_classes, own_values, strict=True) for x in pair]
            row = (
                path_of(name, int(index)), batch.step, name, group_of(name, int(index)), label if label >= 0 else None,
                own_classes[0], own_values[0], by_source, *tops,
            )  # fmt: skip
            yield dict(zip(self._columns, row, strict=True))

    def _write(self, rows: list[dict[str, Any]], mode: str) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        if mode == "w":
            writer.writeheader()
        writer.writerows(rows)
        with writing(self.path), self.path.open(mode, newline="", encoding="utf-8") as file:
            file.write(text.getvalue())

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Convert the file after the whole stream; Lightning does not call this after a failure or interruption."""
        if self.parquet and trainer.is_global_zero:
            with writing(self.path):
                _to_parquet(self.path, self._columns)
                self.path.unlink()


def _to_parquet(path: Path, columns: Sequence[str]) -> None:
    """Write a Parquet file beside a CSV file. Types are given: guessed ones turn a group ``007`` into a number."""
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions, read_csv
    from pyarrow.parquet import write_table

    numbers = {name: pa.float64() if name.startswith(("confidence", "score")) else pa.int64() for name in columns}
    options = ConvertOptions(
        column_types={**numbers, **dict.fromkeys(TEXTS, pa.string())}, null_values=[""], strings_can_be_null=True
    )
    table = read_csv(path, parse_options=ParseOptions(newlines_in_values=True), convert_options=options)
    write_table(table, path.with_suffix(".parquet"))
