"""Many runs, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tta_bench.domains.corrupted import DomainSource
from tta_bench.engine.bench import execute
from tta_bench.engine.config import Composed, plain
from tta_bench.engine.run import Run


def run_jobs(jobs: Sequence[Composed], console: Console) -> list[dict[str, Any]]:
    """Run what is not finished yet; a run that fails, or cannot be made, never stops the others.

    Returns:
        The results in the order of the jobs. Of a run that cannot be made, ``status`` and ``error`` only.

    Raises:
        ValueError: If not even the first run can be made: what is wrong with it is most likely wrong with all.
        FileNotFoundError: The same, for a file.
        WriteError: If the disk does not take the files of a run.
        Interrupted: After a SIGTERM or SIGINT.
    """
    opened: dict[str, DomainSource] = {}  # every run sees the same images, rendered once
    results: list[dict[str, Any]] = []
    shared = set.intersection(*(set(job.words) for job in jobs)) if len(jobs) > 1 else set()
    for number, job in enumerate(jobs, start=1):
        _say(console, f"run {number} of {len(jobs)}: {' '.join(w for w in job.words if w not in shared)}", "dim")
        key = str(plain(job.config.dataset))
        try:
            run = Run(job, opened.get(key))
            opened[key] = run.domains
            results.append(execute(run, console))
        except (ValueError, FileNotFoundError) as error:
            if not results:
                raise
            results.append({"status": "failed", "error": str(error)})
        if results[-1]["status"] == "failed":
            _say(console, f"failed: {results[-1]['error']}", "bold red")
    return results


def _say(console: Console, sentence: str, style: str) -> None:
    console.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)
