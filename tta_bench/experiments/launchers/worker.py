"""Runs jobs one after the other in one process, and keeps what they have in common."""

from __future__ import annotations

import copy
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from tta_bench.callbacks.interrupts import Interrupted
from tta_bench.callbacks.progress import Progress
from tta_bench.config.compose import Composed, plain
from tta_bench.experiments.apart import run_apart
from tta_bench.experiments.notices import say_new
from tta_bench.experiments.opened import Opened
from tta_bench.experiments.resume import BusyError
from tta_bench.experiments.run import Run, build_method
from tta_bench.experiments.source_cache import check_source
from tta_bench.files import WriteError, writing
from tta_bench.ranks import is_launched, is_single_device

Files = Mapping[str, bytes]  # the files of a run folder
Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Survey:
    """What is known before the first run starts.

    Attributes:
        header: What the result of the first run will begin with.
        warnings: Methods that will fail, a sentence each.
        notices: Notices about the data and the model of the first run, a sentence each.
    """

    header: dict[str, Any]
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def complete(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add what is known of the first run, such as the data, to the result of a run that could not start."""
        return result if "schema" in result else {**self.header, **result}


@dataclass(frozen=True)
class Outcome:
    """How a job ended in a worker.

    Attributes:
        result: In the form of ``result.json``; None if the job has not ended.
        busy: Another process is using the run folder.
        files: The run folder, if the driver does not see it.
        resumed: The batch at which the run was resumed.
    """

    result: dict[str, Any] | None = None
    busy: bool = False
    files: Files | None = None
    resumed: int = 0


@dataclass
class Worker:
    """Runs jobs in this process.

    Attributes:
        opened: Data sets and source models, which later jobs use again.
    """

    opened: Opened = field(default_factory=Opened)
    _run: Run | None = None
    _stopped: bool = False

    def survey(self, jobs: Sequence[Composed]) -> Survey:
        """Build the first run, and the method of every other one with its model and data, before anything runs.

        Raises:
            ValueError: If one cannot be built from its configuration.
            FileNotFoundError: If a file is missing.
        """
        run, seen, warnings = Run(jobs[0], self.opened), [], []
        for job in jobs:
            method_node = plain(job.config.method)
            same = (job.config.model, job.config.dataset) == (run.config.model, run.config.dataset)
            if not same or method_node in seen:
                continue
            seen.append(method_node)
            method = build_method(job.config.method, copy.deepcopy(run.backbone), seed=0)
            try:
                check_source(method, run.domains)
                method.configure_model()
            except ValueError as error:
                warnings.append(f"{job.choices['method']} will fail: {error}")
        return Survey(run.header(), tuple(warnings), tuple(run.notices()))

    def run(
        self, job: Composed, console: Console, watch: Watch | None = None, folder: Path | None = None
    ) -> dict[str, Any]:
        """Run a job; one that cannot start is a failed result, which lacks what is only known of a run that can.

        Args:
            job: The configuration.
            console: Where the run prints.
            watch: Called after every batch.
            folder: Root of the run folders, instead of the job's ``output``.

        Raises:
            BusyError: If another process is using the run folder.
            WriteError: If the run folder cannot be written.
            Interrupted: After a SIGTERM, a SIGINT or ``stop()``.
        """
        run = None
        try:
            run = self._run = Run(job, self.opened, folder)
            if self._stopped:
                raise Interrupted(signal.SIGTERM, 0)
            return execute(run, console, watch)
        except BusyError:
            raise
        except (ValueError, FileNotFoundError) as error:
            return failed(job, str(error), run.header() if run else None)
        finally:
            self._run = None

    def run_logged(self, job: Composed, watch: Watch, files: Files | None = None) -> Outcome:
        """Run a job whose messages go to ``log.txt`` in its run folder, never to the terminal.

        Args:
            job: The configuration.
            watch: Called after every batch.
            files: The driver's files of the run folder, if this process does not see them; the outcome then has the
                files as they are at the end.
        """
        resumed = 0

        def note(progress: Progress) -> None:
            nonlocal resumed
            resumed = progress.resumed
            watch(progress)

        with tempfile.TemporaryDirectory() as scratch:
            own = None if files is None else Path(scratch)
            folder = Run.folder_of(job, own)
            if files:
                write_files(folder, files)
            try:
                with _logged(folder) as log:
                    result = self.run(job, Console(file=log, width=200, force_terminal=False), note, own)
            except BusyError:
                return Outcome(busy=True)
            except WriteError as error:
                result = failed(job, str(error))
            except (SystemExit, KeyboardInterrupt):
                result = None
            return Outcome(result, files=None if own is None else read_files(folder), resumed=resumed)

    def stop(self) -> None:
        """Let the job write its state after the current batch and end; called by another thread."""
        self._stopped = True
        if self._run is not None:
            self._run.interrupts.signum = signal.SIGTERM


def failed(job: Composed, error: str, header: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The result of a job that failed before it could write one.

    Args:
        job: The configuration.
        error: Why it failed.
        header: The header of its run, if the run could be built.
    """
    known = header or {**job.choices, "seed": job.config.seed}
    return {**known, "config": plain(job.config), "status": "failed", "error": error}


@contextmanager
def _logged(folder: Path) -> Iterator[TextIO]:
    """Redirect everything that is printed to ``log.txt``.

    Raises:
        WriteError: If the file cannot be opened.
    """
    path = folder / "log.txt"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        log = path.open("a", encoding="utf-8", buffering=1)
    with log, redirect_stdout(log), redirect_stderr(log):
        yield log


def read_files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_files(folder: Path, files: Files) -> None:
    """Write files into a folder, each atomically; its other files stay."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.draft")
        draft.write_bytes(content)
        draft.replace(path)


def execute(run: Run, console: Console, watch: Watch | None = None) -> dict[str, Any]:
    """Run in this process, or in separate ones if the run uses several devices and was not launched once per device."""
    if is_single_device(run.config.trainer.devices) or is_launched():
        result = run.execute(console, watch)
        say_new(console, result.get("notices", ()), run.opened.said)
        return result
    run_apart([sys.executable, "-m", "tta_bench", "run", *map(str, run.words)])
    return {**json.loads((run.folder / "result.json").read_text()), "folder": str(run.folder)}
