"""The loop over runs that bench, tune and reproduce share."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tta_bench.config.compose import Composed, plain
from tta_bench.config.launch import Shard
from tta_bench.console import say
from tta_bench.datasets.base import DomainDataset
from tta_bench.experiments.apart import run_apart
from tta_bench.experiments.costs import common_words, share
from tta_bench.experiments.run import Run, build_method
from tta_bench.experiments.source_cache import check_source
from tta_bench.ranks import is_launched, is_single_device


def run_jobs(jobs: Sequence[Composed], console: Console) -> list[dict[str, Any]]:
    """Run all jobs that are not finished yet.

    Invalid configurations are refused before the first run starts. After that, a failed run never stops the others; a
    method that does not work with the model or the data is reported before the first run starts, and fails when it is
    run.

    Args:
        jobs: The configurations, in the order in which they run.
        console: Where progress and failures are printed.

    Returns:
        The results in the order of the jobs, in the form of ``result.json``, with the run's ``folder``. A run that
        could not be started has none; what is not known of it, such as the data, is taken from the first run.

    Raises:
        ValueError: If the first run, or another one with the same data and model, cannot be built; nothing has run.
        FileNotFoundError: The same, for a missing file.
        WriteError: If the files of a run cannot be written.
        Interrupted: After a SIGTERM or SIGINT.
    """
    opened: dict[str, DomainDataset] = {}  # every run sees the same images, rendered once
    results: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    shared = common_words(jobs)
    for number, job in enumerate(jobs, start=1):
        run = None
        say(console, f"run {number} of {len(jobs)}: {' '.join(str(w) for w in job.words if w not in shared)}", "dim")
        try:
            key = str(plain(job.config.dataset))
            run = Run(job, opened.get(key))
            opened[key] = run.domains
            if not first:
                _announce_failures(jobs, run, console)
                first = run.header()
            results.append(execute(run, console))
        except (ValueError, FileNotFoundError) as error:
            if not first:
                raise
            known = run.header() if run else {**first, **job.choices, "seed": job.config.seed}
            known |= {"config": plain(job.config), "status": "failed", "error": str(error)}
            results.append(known)
        if results[-1]["status"] == "failed":
            say(console, f"{job.choices['method']} seed {job.config.seed} failed: {results[-1]['error']}", "bold red")
    return results


def run_shard(jobs: Sequence[Composed], shard: Shard, console: Console) -> None:
    """Run a part of the jobs, for a table that needs the others as well.

    Raises:
        ValueError: As :func:`run_jobs`.
    """
    results = run_jobs(share(jobs, shard), console)
    done = sum(result["status"] == "done" for result in results)
    say(
        console,
        f"shard {shard}: {done} of {len(results)} runs are done; when all shards are, the same command without shard= "
        "shows the table",
    )


def _announce_failures(jobs: Sequence[Composed], run: Run, console: Console) -> None:
    """Report the methods that do not work with the first run's model or data before hours are spent on the others.

    Raises:
        ValueError: If a method cannot be built from its configuration.
    """
    looked_at = []
    for job in jobs:
        method_node = plain(job.config.method)
        if (job.config.model, job.config.dataset) != (run.config.model, run.config.dataset) or method_node in looked_at:
            continue
        looked_at.append(method_node)
        method = build_method(job.config.method, copy.deepcopy(run.backbone), seed=0)
        try:
            check_source(method, run.domains)
            method.configure_model()
        except ValueError as error:
            say(console, f"{job.choices['method']} will fail: {error}", "yellow")


def execute(run: Run, console: Console) -> dict[str, Any]:
    """Run in this process, or in separate ones if the run uses several devices and was not launched once per device."""
    if is_single_device(run.config.trainer.devices) or is_launched():
        return run.execute(console)
    run_apart([sys.executable, "-m", "tta_bench", "run", *map(str, run.words)])
    return {**json.loads((run.folder / "result.json").read_text()), "folder": str(run.folder)}
