"""Many runs, one after the other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rich.console import Console

from tta_bench.callbacks.interrupts import SIGNALS
from tta_bench.config.compose import Composed, plain
from tta_bench.datasets.base import DomainDataset
from tta_bench.experiments.run import Run
from tta_bench.ranks import is_launched


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
    opened: dict[str, DomainDataset] = {}  # every run sees the same images, rendered once
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


def execute(run: Run, console: Console) -> dict[str, Any]:
    """Run here, or in processes of its own if it takes several devices and nobody has started one for each."""
    if str(run.config.trainer.devices) == "1" or is_launched():
        return run.execute(console)
    _run_apart([sys.executable, "-m", "tta_bench", "run", *run.words])
    return {**json.loads((run.folder / "result.json").read_text()), "folder": str(run.folder)}


def _run_apart(command: list[str]) -> None:
    """Run a command in a session of its own, and hand on the signals that would otherwise end only this process.

    Raises:
        SystemExit: If a signal came; the command has ended by then, with its state on disk.
    """
    process, received = subprocess.Popen(command, start_new_session=True), []

    def hand_on(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        process.send_signal(signum)

    before = {number: signal.signal(number, hand_on) for number in SIGNALS}
    try:
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
