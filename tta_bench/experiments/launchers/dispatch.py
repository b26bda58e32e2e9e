"""Assign jobs to workers, the longest first, until every job has a result, whatever happens to the workers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console

from tta_bench.callbacks.interrupts import SIGNALS
from tta_bench.callbacks.progress import Progress
from tta_bench.config.compose import Composed, plain
from tta_bench.config.words import ConfigError
from tta_bench.experiments.costs import cost
from tta_bench.experiments.launchers.engine import Content, Died, Engine, Ready, Slot
from tta_bench.experiments.launchers.screen import Counts, Line, Screen
from tta_bench.experiments.launchers.worker import Outcome, Survey, failed, read_files, write_files
from tta_bench.experiments.notices import say_new
from tta_bench.experiments.resume import POLL
from tta_bench.experiments.run import Run
from tta_bench.ranks import is_single_device
from tta_bench.results.run_folder import read_result, write_result

TICK = 0.3  # seconds to wait for messages of the workers
STARTS = 3  # consecutive workers that may die before they are ready


class Dispatch:
    """Runs jobs in the workers of an engine.

    The job of a worker that dies goes to another one, which continues from the last state if it sees the run folder. A
    job whose workers die twice at the same batch (usually because memory is exhausted) fails.

    Args:
        jobs: The configurations.
        console: Where progress and failures are printed.
        engine: Starts the workers.

    Raises:
        ConfigError: If a job uses several devices.
    """

    def __init__(self, jobs: Sequence[Composed], console: Console, engine: Engine) -> None:
        for job in jobs:
            if not is_single_device(job.config.trainer.devices):
                raise ConfigError(
                    f"trainer.devices={job.config.trainer.devices}: several runs at once take one device each; leave "
                    "it out, or run one after the other (launcher=local)"
                )
        self.jobs, self.engine, self.screen = jobs, engine, Screen(console)
        self.queue = sorted(range(len(jobs)), key=lambda k: -cost(jobs[k]))
        self.results: dict[int, dict[str, Any]] = {}
        self.failures = 0  # among the results
        self.slots: dict[Slot, Ready | None] = {}
        self.running: dict[Slot, int] = {}
        self.progress: dict[Slot, Progress] = {}
        self.held: dict[int, float] = {}  # when a job that another process holds is tried again
        self.deaths: dict[int, list[int]] = {}  # the batches at which a job's workers died
        self.survey: Survey | None = None
        self.surveying: Slot | None = None
        self.failed_starts = 0
        self.stranded = False  # all nodes are gone
        self.signals: list[int] = []  # received so far
        self.said: set[str] = set()  # notices

    def run(self) -> list[dict[str, Any]]:
        """Run all jobs.

        Returns:
            The results, in the order of the jobs.

        Raises:
            ValueError: If the first run cannot be built, or workers cannot start; nothing has run.
            FileNotFoundError: If a file is missing.
            SystemExit: After a SIGTERM or SIGINT.
        """
        try:
            with self._deferred_signals(), self.screen:
                while len(self.results) < len(self.jobs) and (not self.signals or self.running):
                    if self.signals:
                        self._stop()
                    else:
                        self._open()
                    for slot, content in self.engine.wait(TICK):
                        if slot in self.slots:
                            self._hear(slot, content)
                    self._give()
                    self.screen.show(self._lines(), self._counts())
        finally:
            self.engine.close()
        if self.signals:
            left = len(self.jobs) - len(self.results)
            self.screen.say(f"interrupted: {left} of {len(self.jobs)} runs are left; run the same command again to "
                            "resume", "bold red")  # fmt: skip
            raise SystemExit(128 + self.signals[0])
        return [self.results[k] for k in range(len(self.jobs))]

    def _open(self) -> None:
        capacity = self.engine.capacity()
        wanted = min(capacity, len(self.jobs) - len(self.results))
        if not capacity and not self.stranded:
            self.screen.say("no node has room for a run at present: waiting for one", "yellow")
        self.stranded = not capacity
        while len(self.slots) < wanted:
            self.slots[self.engine.open()] = None

    def _stop(self) -> None:
        for slot in self.running:
            if len(self.signals) == 1 and slot in self.progress:
                slot.stop()
            else:  # there is no state to save yet, or this is the second signal
                slot.kill()

    def _give(self) -> None:
        """Assign a job to every idle worker."""
        for slot, ready in self.slots.items():
            if ready is None or slot in self.running or slot is self.surveying or self.signals:
                continue
            if self.survey is None:
                if self.surveying is None:
                    self.surveying = slot
                    slot.survey(self._distinct())
                continue
            now = time.monotonic()
            number = next((k for k in self.queue if self.held.get(k, 0) <= now), None)
            if number is None:
                continue
            self.queue.remove(number)
            self.running[slot] = number
            folder = Run.folder_of(self.jobs[number])
            slot.run(self.jobs[number], None if ready.sees_output else read_files(folder))

    def _distinct(self) -> list[Composed]:
        """The first job of each method, for the survey."""
        return list({str(plain(job.config.method)): job for job in reversed(self.jobs)}.values())[::-1]

    def _hear(self, slot: Slot, content: Content) -> None:
        match content:
            case Ready():
                self.slots[slot], self.failed_starts = content, 0
            case Survey():
                self.survey, self.surveying = content, None
                for warning in content.warnings:
                    self.screen.say(warning, "yellow")
                say_new(self.screen.console, content.notices, self.said)
            case Progress():
                self._note(slot, content)
            case Outcome():
                self._end(slot, content)
            case Died():
                self._bury(slot, content)
            case Exception():
                raise content

    def _note(self, slot: Slot, progress: Progress) -> None:
        if slot not in self.running:
            return
        if slot not in self.progress:
            self._say_resumed(self.running[slot], progress.resumed)
        self.progress[slot] = progress

    def _say_resumed(self, number: int, batch: int) -> None:
        if batch:
            self.screen.say(f"{self.jobs[number].title}: resumed at batch {batch}", "dim")

    def _end(self, slot: Slot, outcome: Outcome) -> None:
        number = self.running.pop(slot)
        if self.progress.pop(slot, None) is None:  # it ended before its first progress message
            self._say_resumed(number, outcome.resumed)
        job = self.jobs[number]
        if outcome.files:
            write_files(Run.folder_of(job), outcome.files)
        if outcome.busy:
            if number not in self.held:
                self.screen.say(f"{job.title}: another process is running it; it comes at the end", "dim")
            self.held[number] = time.monotonic() + POLL
            self.queue.append(number)
        elif outcome.result is not None:
            self._finish(number, outcome.result)
        elif not self.signals:
            self._fail(number, "the method ended its process")

    def _finish(self, number: int, result: dict[str, Any]) -> None:
        assert self.survey is not None
        result = self.survey.complete(result)
        folder = Run.folder_of(self.jobs[number])
        if "folder" in result:
            result["folder"] = str(folder)
        self.results[number] = result
        self.failures += result["status"] == "failed"
        say_new(self.screen.console, result.get("notices", ()), self.said)
        title = f"{len(self.results)} of {len(self.jobs)}: {self.jobs[number].title}"
        if result["status"] == "failed":
            self.screen.say(f"{title} failed: {result['error']}", "bold red")
        else:
            self.screen.say(f"{title} {result['status']}")

    def _fail(self, number: int, reason: str) -> None:
        """Record the failure of a job whose worker could not."""
        job, folder = self.jobs[number], Run.folder_of(self.jobs[number])
        result, known = failed(job, reason), read_result(folder)
        if known is not None:
            result = {**write_result(folder, {**known, "status": "failed", "error": reason}), "folder": str(folder)}
        self._finish(number, result)

    def _bury(self, slot: Slot, death: Died) -> None:
        started = self.slots.pop(slot) is not None
        progress = self.progress.pop(slot, None)
        number = self.running.pop(slot, None)
        if slot is self.surveying:
            started, self.surveying = False, None
        if not started:
            self.failed_starts += 1
            if self.failed_starts >= STARTS:
                raise ConfigError(f"no worker could be started: {death.reason}")
        if number is None or self.signals:
            return
        batch, before = progress.batch if progress else 0, self.deaths.setdefault(number, [])
        if before and batch <= max(before):
            self._fail(
                number, f"its worker died twice at batch {batch}, probably because memory ran out: {death.reason}"
            )
            return
        before.append(batch)
        continues = (Run.folder_of(self.jobs[number]) / "state.pt").exists()
        how = "continues from its last state" if continues else "starts over"
        self.screen.say(f"{self.jobs[number].title}: {death.reason}; it {how} elsewhere", "yellow")
        self.queue.insert(0, number)

    def _lines(self) -> list[Line]:
        places = {slot: ready.place for slot, ready in self.slots.items() if ready is not None}
        return [
            Line(self.jobs[number].title, places[slot], self.progress.get(slot))
            for slot, number in self.running.items()
        ]

    def _counts(self) -> Counts:
        done = len(self.results) - self.failures
        return Counts(done, len(self.running), len(self.queue), self.failures)

    @contextmanager
    def _deferred_signals(self) -> Iterator[None]:
        """Record signals: the first one stops every job after its batch, the second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signal(self, signum: int, frame: FrameType | None) -> None:
        self.signals.append(signum)
