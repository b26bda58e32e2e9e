"""A row per image on disk, in CSV and Parquet, also of a run that was interrupted."""

from __future__ import annotations

import csv

import pytest

from tta_bench.callbacks import AdaptationMonitor
from tta_bench.callbacks.label_free import LabelFree
from tta_bench.callbacks.predictions import SavePredictions
from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.methods import Tent
from tta_bench.testing import run_stream, toy_backbone
from tta_bench.testing.toy import ToyDomains

BATCH = 8


class Named(ToyDomains):
    """Names of images and groups that read like numbers, dates and missing values."""

    def path(self, domain, index):
        return f"{index:03d}" if index else "a,\n b.png"

    def group(self, domain, index):
        return ("007", "NA", None)[index % 3]


def run(path, start=0, parquet=False):
    domains = Named()
    data = StreamDataModule(domains, schedule_for(domains, "csc", batch_size=BATCH))
    data.start = start
    label_free = LabelFree(toy_backbone)
    saver = SavePredictions(path, label_free, lambda: start, parquet)
    scores = run_stream(Tent(toy_backbone()), data, AdaptationMonitor(label_free=label_free), saver)
    return data.schedule, scores.double().softmax(dim=1)


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_parquet_has_the_rows_of_the_csv_with_their_types(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "predictions.csv"
    schedule, probabilities = run(path, parquet=True)
    assert not path.exists()
    table = parquet.read_table(path.with_suffix(".parquet"))
    confidence, predicted = probabilities.max(dim=1)
    domains = Named()
    steps = [zip(step.domain_ids, step.indices, strict=True) for step in schedule]
    visits = [(schedule.domains[d], int(i)) for step in steps for d, i in step]
    assert table["path"].to_pylist() == [domains.path(*visit) for visit in visits]
    assert table["group"].to_pylist() == [domains.group(*visit) for visit in visits]
    assert table["domain"].to_pylist() == [name for name, _ in visits]
    assert table["label"].to_pylist() == [int(domains.labels(name)[i]) for name, i in visits]
    assert table["predicted"].to_pylist() == predicted.tolist()
    assert table["confidence"].to_pylist() == confidence.tolist()
    texts, numbers = ("path", "domain", "group"), ("step", "label", "predicted", "source_predicted", "top1", "top4")
    assert {table.schema.field(name).type for name in texts} == {arrow.string()}
    assert {table.schema.field(name).type for name in numbers} == {arrow.int64()}
    assert {table.schema.field(name).type for name in ("confidence", "score1", "score4")} == {arrow.float64()}


class TestResumed:
    def test_rows_of_batches_that_are_not_repeated_stay(self, tmp_path):
        path = tmp_path / "predictions.csv"
        schedule, _ = run(path)
        whole, kept = read(path), int(schedule.offsets[2])
        text = path.read_text()
        path.write_text(text[: len(text) // 2] + "\nhalf a r")  # killed while writing a later batch
        run(path, start=2)
        rows = read(path)
        assert [row["path"] for row in rows] == [row["path"] for row in whole]
        assert rows[:kept] == whole[:kept]

    def test_missing_rows_are_noticed(self, tmp_path):
        path = tmp_path / "predictions.csv"
        run(path)
        path.write_text("\n".join(path.read_text().splitlines()[:4]))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"predictions\.csv lacks rows .*: resume=never starts over"):
                run(path, start=2)
            path.unlink(missing_ok=True)
