"""Workers that are processes of this machine, with a GPU each where there are GPUs."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from tta_bench.callbacks.progress import Progress
from tta_bench.config.compose import Composed
from tta_bench.data.datamodule import processors
from tta_bench.experiments.launchers.engine import Content, Died, Ready, Slot
from tta_bench.experiments.launchers.worker import Files, Worker

STOP = "stop"
EVERY = 0.2  # seconds between two reports of a job


class LocalSlot:
    """A process.

    Args:
        number: Its index among the workers.
        environment: Its environment variables.
        place: Its name on the screen.
    """

    def __init__(self, number: int, environment: dict[str, str], place: str) -> None:
        self.number, self.place = number, place
        self.connection, theirs = Pipe()
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tta_bench.experiments.launchers.local", str(theirs.fileno()), place],
            env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self.errors,
            stderr=self.errors, start_new_session=True,  # Ctrl-C reaches only the driver, which stops the jobs
        )  # fmt: skip
        theirs.close()

    def survey(self, jobs: Sequence[Composed]) -> None:
        """Request a survey."""
        self._send(("survey", jobs))

    def run(self, job: Composed, files: Files | None) -> None:
        """Run a job."""
        self._send(("run", job))

    def stop(self) -> None:
        """Let the job write its state and stop."""
        self._send(STOP)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # it has died, which ``wait`` notices
            self.connection.send(message)

    def last_words(self) -> Died:
        """Why the process died."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        if code < 0:
            return Died(f"its process was killed by {signal.Signals(-code).name}")
        return Died(f"its process ended with {lines[-1] if lines else f'exit status {code}'}")

    def close(self) -> None:
        """Let the process end by itself, or kill it after 5 seconds."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        self.process.kill()
        self.process.wait()
        self.errors.close()


class LocalEngine:
    """Starts processes.

    Args:
        workers: Maximum number of processes.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.slots = workers, list[LocalSlot]()

    def capacity(self) -> int:
        """The maximum number of processes."""
        return self.workers

    def open(self) -> LocalSlot:
        """Start a process."""
        taken = {slot.number for slot in self.slots}
        number = next(k for k in range(self.workers) if k not in taken)
        own, place = _share(number, self.workers)
        slot = LocalSlot(number, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **own}, place)
        self.slots.append(slot)
        return slot

    def wait(self, seconds: float) -> list[tuple[Slot, Content]]:
        """Messages of the processes; the last one of a process that has died is ``Died``."""
        if not self.slots:
            time.sleep(seconds)
        by_connection = {slot.connection: slot for slot in self.slots}
        heard: list[tuple[Slot, Content]] = []
        for connection in wait(list(by_connection), timeout=seconds):
            slot = by_connection[connection]  # type: ignore[index]  # only these were waited for
            try:
                heard.append((slot, slot.connection.recv()))
            except (EOFError, OSError):
                heard.append((slot, slot.last_words()))
                self.slots.remove(slot)
                slot.close()
        return heard

    def close(self) -> None:
        """End all processes."""
        for slot in self.slots:  # all at once: each then takes its time to end
            slot.connection.close()
        for slot in self.slots:
            slot.close()
        self.slots.clear()


def _share(number: int, workers: int) -> tuple[dict[str, str], str]:
    """Environment variables that give a process its share of the machine, and its name on the screen."""
    own, place = {}, f"worker {number}"
    if "OMP_NUM_THREADS" not in os.environ:
        own["OMP_NUM_THREADS"] = str(max(1, processors() // workers))
    if gpus := torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        device = visible.split(",")[number % gpus]
        own["CUDA_VISIBLE_DEVICES"] = device
        place += f", cuda:{device}"
    return own, place


def serve(connection: Connection, place: str) -> None:
    """Execute the requests of the driver until it closes the connection; a running job then writes its state first."""
    worker, inbox = Worker(), queue.Queue[Any]()

    def listen() -> None:
        message: Any = ""
        while message is not None:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                message = None
            if message in (None, STOP):
                worker.stop()
            if message != STOP:
                inbox.put(message)

    last = 0.0

    def watch(progress: Progress) -> None:
        nonlocal last
        if progress.batch == progress.resumed or time.monotonic() - last > EVERY:
            last = time.monotonic()
            answer(progress)

    def answer(content: Content) -> None:
        with suppress(OSError):  # the driver has died
            connection.send(content)

    threading.Thread(target=listen, daemon=True).start()
    answer(Ready(place))
    while (message := inbox.get()) is not None:
        match message:
            case ("survey", jobs):
                try:
                    answer(worker.survey(jobs))
                except (ValueError, FileNotFoundError) as error:
                    answer(error)
            case ("run", job):
                answer(worker.run_logged(job, watch))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), sys.argv[2])
