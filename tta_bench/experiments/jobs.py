"""The loop over runs that bench, tune and reproduce share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tta_bench.config.compose import Composed
from tta_bench.config.launch import ONE_BY_ONE, Launch, LocalLauncher, RayLauncher, Shard
from tta_bench.config.words import ConfigError
from tta_bench.console import say
from tta_bench.experiments.costs import common_words, share
from tta_bench.experiments.launchers.dispatch import Dispatch
from tta_bench.experiments.launchers.engine import Engine
from tta_bench.experiments.launchers.local import LocalEngine
from tta_bench.experiments.launchers.worker import Worker
from tta_bench.experiments.notices import say_new
from tta_bench.experiments.resume import POLL, BusyError


def run_jobs(jobs: Sequence[Composed], console: Console, launch: Launch = ONE_BY_ONE) -> list[dict[str, Any]]:
    """Run all jobs that are not finished yet.

    Invalid configurations are refused before the first run starts. After that, a failed run never stops the others; a
    method that does not work with the model or the data is reported before the first run starts, and fails when it is
    run. A run that another process holds comes last: by then it is finished, or this process continues it.

    Args:
        jobs: The configurations, in the order in which they run.
        console: Where progress and failures are printed.
        launch: Where and how many at once they run.

    Returns:
        The results in the order of the jobs, in the form of ``result.json``, with the run's ``folder``. A run that
        could not be started has none; what is not known of it, such as the data, is taken from the first run.

    Raises:
        ValueError: If the first run, or another one with the same data and model, cannot be built; nothing has run.
        FileNotFoundError: The same, for a missing file.
        WriteError: If the files of a run cannot be written.
        Interrupted: After a SIGTERM or SIGINT.
    """
    if launch.launcher == LocalLauncher(workers=1):
        return _one_by_one(jobs, console)
    return Dispatch(jobs, console, _engine(launch.launcher, jobs)).run()


def _engine(launcher: LocalLauncher | RayLauncher, jobs: Sequence[Composed]) -> Engine:
    if isinstance(launcher, LocalLauncher):
        return LocalEngine(launcher.workers)
    try:
        from tta_bench.experiments.launchers.ray import RayEngine
    except ImportError as error:
        raise ConfigError(f"launcher=ray needs Ray ({error}): pip install 'tta_bench[ray]'") from error
    return RayEngine(launcher, jobs)


def _one_by_one(jobs: Sequence[Composed], console: Console) -> list[dict[str, Any]]:
    worker, shared = Worker(), common_words(jobs)
    survey = worker.survey(jobs)
    say_new(console, survey.notices, worker.opened.said)
    for warning in survey.warnings:
        say(console, warning, "yellow")
    results: dict[int, dict[str, Any]] = {}
    waiting, held = list(range(len(jobs))), set()
    while waiting:
        number = waiting.pop(0)
        job = jobs[number]
        if number not in held:
            words = " ".join(str(word) for word in job.words if word not in shared)
            say(console, f"run {number + 1} of {len(jobs)}: {words}", "dim")
        try:
            result = survey.complete(worker.run(job, console))
        except BusyError:
            if number not in held:
                say(console, f"{job.title}: another process is running it; it comes at the end", "dim")
            held.add(number)
            waiting.append(number)
            if held.issuperset(waiting):
                time.sleep(POLL)
            continue
        results[number] = result
        if result["status"] == "failed":
            say(console, f"{job.title} failed: {result['error']}", "bold red")
    return [results[number] for number in range(len(jobs))]


def run_shard(jobs: Sequence[Composed], console: Console, shard: Shard, launch: Launch) -> None:
    """Run a part of the jobs, for a table that needs the others as well.

    Raises:
        ValueError: As :func:`run_jobs`.
    """
    mine = share(jobs, shard)
    results = run_jobs(mine, console, launch) if mine else []
    done = sum(result["status"] == "done" for result in results)
    say(
        console,
        f"shard {shard}: {done} of {len(results)} runs are done; when all shards are, the same command without shard= "
        "shows the table",
    )
