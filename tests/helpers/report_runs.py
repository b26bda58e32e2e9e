"""Consistent run folders with known numbers, as written by a run."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import RowWriter, write_result
from tta_bench.results.visits import visit_summary
from tta_bench.streams import Schedule

DOMAINS = ("gaussian_noise", "fog", "snow")
HOSTILE = "<script>alert(1)</script> & \"q\" 'a' | _x_ $y$ 100% {z} \\input{/etc/passwd} ü"


def result(method: str = "tent", seed: int = 0, errors: tuple[float, ...] = (40.0, 20.0), **changes: Any) -> dict:
    """Content of a result file; changes are keywords by dotted key, with ``__`` for dots."""
    domains = DOMAINS[: len(errors)]
    made = {
        "schema": 1, "status": "done", "method": method, "setting": "cdc", "dataset": "shapes_c", "model": "shapes_vit",
        "seed": seed, "source_mean_error": None, "prediction_timing": "last_forward", "needs_source": "nothing",
        "paper": "Wang et al., ICLR 2021", "domains": list(domains), "stream_sha256": f"{seed:064x}",
        "weights_sha256": "ab" * 32, "code_sha256": "cd" * 32, "preprocess": {"mean": [0.5], "std": [0.25]},
        "data": {"clean": "procedural shapes", "num_images": 10, "severity": 5},
        "config": {
            "setting": {"kind": "cdc", "batch_size": 4, "delta": 1.0, "rounds": 1, "order": None},
            "trainer": {"precision": "32-true"}, "model": {"compile": "off"}, "method": {"lr": 0.1},
        },
        "versions": {"tta_bench": "0.1.0", "torch": "2.14.1"}, "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T04:04:05+00:00", "source_seconds": 0.0, "device": "cpu (1 threads)",
        "mean_error": sum(errors) / len(errors), "sample_error": sum(errors) / len(errors),
        "domain_error": dict(zip(domains, errors, strict=True)), "forward_per_sample": 1.0, "backward_per_sample": 1.0,
        "coreset_size": None, "seconds": 2.0, "seconds_per_batch_median": 0.01, "peak_memory_bytes": 2**20,
        "trainable_parameters": 100, "extra_parameters": 0,
    }  # fmt: skip
    made = copy.deepcopy(made)
    for key, value in changes.items():
        *parents, last = key.split("__")
        node: Any = made
        for parent in parents:
            node = node[parent]
        node[last] = value
    return made


def write_run(
    folder: Path,
    content: dict,
    batches: list[dict[str, tuple[int, int]]],
    top_class_share: list[float] | None = None,
    planned: list[dict[str, tuple[int, int]]] | None = None,
    **diagnostics: list,
) -> Path:
    """Write a run folder.

    Args:
        folder: The run folder.
        content: ``result.json``; the counts of a finished run are computed from the batches.
        batches: Per batch and domain, the number of samples and of wrong predictions.
        top_class_share: Per batch; 0.5 by default.
        planned: The batches of the whole stream, if the run ended earlier.
        diagnostics: By name, one value per batch.
    """
    folder.mkdir(parents=True)
    tally, rows, writer = Tally(), [], RowWriter(folder / "batches.csv")
    for step, by_domain in enumerate(batches):
        n = sum(samples for samples, _ in by_domain.values())
        own = {name: values[step] for name, values in diagnostics.items()}
        row = BatchRow(
            step, by_domain, n, n, 0.01, own, top_class_share=top_class_share[step] if top_class_share else 0.5
        )
        tally.add(row)
        rows.append(row)
        writer.write(row, tally)
    writer.close()
    (folder / "config.yaml").write_text("seed: 0\n")
    if planned := planned or batches:
        schedule = stream_of(planned, content["seed"])
        schedule.save(folder / "stream.json")
        content = {**content, "stream_sha256": schedule.fingerprint()}
    if content["status"] == "done":
        content = {**content, **tally.summary(), **visit_summary(rows)}
    write_result(folder, content)
    return folder


def stream_of(batches: list[dict[str, tuple[int, int]]], seed: int = 0) -> Schedule:
    """Stream of these batches without repeated samples, different for each seed."""
    names = [name for by_domain in batches for name, (n, _) in by_domain.items() for _ in range(n)]
    domains = tuple(dict.fromkeys(names))
    sizes = [sum(n for n, _ in by_domain.values()) for by_domain in batches]
    offsets = [sum(sizes[:t]) for t in range(len(sizes) + 1)]
    ids, indices = [domains.index(name) for name in names], list(range(seed, seed + len(names)))
    return Schedule("cdc", {}, domains, ids, indices, offsets)


def write_many(home: Path, entries: int, seeds: int, steps: int = 60) -> None:
    """Write many runs: ``source``, and entries of one method with increasing hyper-parameter and decreasing error."""
    for seed in range(seeds):
        rng = random.Random(seed)
        domains = [rng.choice(DOMAINS) for _ in range(steps // 6) for _ in range(6)]
        for k in range(entries):
            name = "source" if k == 0 else "dpcore"
            rate = 0.7 - 0.4 * k / entries
            batches = [{domain: (4, sum(rng.random() < rate for _ in range(4)))} for domain in domains]
            changes = {"config__method": {"rho": round(0.5 + 0.005 * k, 3), "prompt_length": 8}} if k else {}
            sizes = {"coreset_size": [1.0 + t // 9 for t in range(steps)]} if k else {}
            content = result(name, seed, errors=(1.0, 2.0, 3.0), **changes)
            write_run(home / f"{name}{k}" / f"seed{seed}", content, batches, **sizes)
