"""Seconds of CPU that `tta-bench report` needs for many long runs, the first time and again.

    python benchmarks/speed/report.py                                          # 25 methods, 5 seeds, 11,730 batches
    python benchmarks/speed/report.py --methods 5 --seeds 2 --formats html     # a twelfth of it

The runs are invented, but their files are those of real ones: 64 samples per batch from one of 15 domains, 15 bins of
confidence, a coreset, and numbers that agree with the rows. The folders take 0.6 GB and are removed at the end.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tta_bench.report import FORMATS
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import SCHEMA, RowWriter, write_result
from tta_bench.results.visits import visit_summary
from tta_bench.streams import STANDARD_ORDER, Schedule, make_stream

BATCH = 64
BINS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=11_730, help="of each run; 15 times 782 on ImageNet-C")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["html", "markdown"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for seed in range(args.seeds):
            stream = _stream(args.batches, seed)
            for k in range(args.methods):
                _write_run(home / f"method{k:02}" / f"seed{seed}", f"method{k:02}" if k else "source", seed, stream)
        print(f"{args.methods} methods x {args.seeds} seeds x {args.batches:,} batches", flush=True)
        for form in args.formats:
            for time in ("first", "again"):
                print(f"{form:10}{time:8}{_cpu_seconds(home, form):8.1f} s of CPU", flush=True)


def _stream(batches: int, seed: int) -> Schedule:
    samples = -(-batches * BATCH // len(STANDARD_ORDER))
    return make_stream("cdc", labels={name: np.arange(samples) % 1000 for name in STANDARD_ORDER}, seed=seed)


def _write_run(folder: Path, method: str, seed: int, stream: Schedule) -> None:
    folder.mkdir(parents=True)
    stream.save(folder / "stream.json")
    (folder / "config.yaml").write_text(f"seed: {seed}\n", encoding="utf-8")
    rng, tally, rows, writer = random.Random(f"{method} {seed}"), Tally(), [], RowWriter(folder / "batches.csv")
    for step, (ids, _) in enumerate(stream):
        counts = np.bincount(ids)
        by_domain = {stream.domains[d]: (int(counts[d]), rng.randrange(int(counts[d]) + 1)) for d in np.unique(ids)}
        bins = {k: (4, rng.uniform(0, 4), rng.randrange(5)) for k in range(BINS)}
        size = {} if method == "source" else {"coreset_size": float(1 + step // 500)}
        row = BatchRow(step, by_domain, len(ids), len(ids), rng.random(), size, rng.random(), bins)
        rows.append(row)
        tally.add(row)
        writer.write(row, tally)
    writer.close()
    write_result(folder, {**_facts(method, seed, stream), **tally.summary(), **visit_summary(rows)})


def _facts(method: str, seed: int, stream: Schedule) -> dict[str, Any]:
    setting = {"kind": "cdc", "batch_size": BATCH, "rounds": 1, "order": None}
    return {
        "schema": SCHEMA, "status": "done", "method": method, "setting": "cdc", "dataset": "imagenet_c",
        "model": "vit_b16_raw", "seed": seed, "domains": list(STANDARD_ORDER), "stream_sha256": stream.fingerprint(),
        "weights_sha256": "ab" * 32, "code_sha256": "cd" * 32, "preprocess": {}, "data": {}, "versions": {},
        "config": {"setting": setting, "trainer": {"precision": "32-true"}, "method": {}, "model": {}},
        "prediction_timing": "last_forward", "needs_source": "nothing", "device": "none",
        "peak_memory_bytes": 2**30, "trainable_parameters": 100, "extra_parameters": 0,
    }  # fmt: skip


def _cpu_seconds(home: Path, form: str) -> float:
    """CPU time, of user and system, of one call of the program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["report", str(home), "--format", form, "--output", str(home / "report")]
    subprocess.run([sys.executable, "-m", "tta_bench", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
