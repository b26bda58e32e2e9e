"""Run folders of segmentation runs."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.report_runs import result, stream_of
from tta_bench.results.confusion import IouTally
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import RowWriter, write_result
from tta_bench.results.visits import visit_summary

DOMAINS = ("fog", "night")
CLASSES = ("road", "sky")


def write_segmented(folder: Path, method: str = "tent", rounds: int = 1, right: int = 6) -> Path:
    """Write a run of one image per batch, each domain once in each round.

    Args:
        folder: The run folder.
        method: Name of the method.
        rounds: Rounds of the stream.
        right: Correct pixels of the first class in the first batch, of 10; one fewer in each later batch.
    """
    folder.mkdir(parents=True)
    tally, rows, writer = Tally(IouTally(CLASSES, len(DOMAINS))), [], RowWriter(folder / "batches.csv")
    for step in range(rounds * len(DOMAINS)):
        domain, good = DOMAINS[step % 2], right - step
        counts = {(0, 0): good, (0, 1): 10 - good, (1, 1): 10}
        row = BatchRow(step, {domain: (1, 0.5 - good / 20)}, 1, 0, 0.1, confusion={domain: counts})
        rows.append(row)
        tally.add(row)
        writer.write(row, tally)
    writer.close()
    schedule = stream_of([{name: (n, 0) for name, (n, _) in row.by_domain.items()} for row in rows])
    schedule.save(folder / "stream.json")
    (folder / "config.yaml").write_text("seed: 0\n")
    content = result(
        method, domains=list(DOMAINS), dataset="streets_c", model="streets_segformer", config__setting__rounds=rounds
    )
    content |= {**tally.summary(), **visit_summary(rows), "stream_sha256": schedule.fingerprint()}
    write_result(folder, content)
    return folder
