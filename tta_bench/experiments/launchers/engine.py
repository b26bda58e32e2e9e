"""What starts workers, and what is heard of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tta_bench.callbacks.progress import Progress
from tta_bench.config.compose import Composed
from tta_bench.experiments.launchers.worker import Files, Outcome, Survey


@dataclass(frozen=True)
class Ready:
    """A worker has started.

    Attributes:
        place: Where it is, such as ``node2, cuda:1``.
        sees_output: Whether it writes to the same run folders as the driver.
    """

    place: str
    sees_output: bool = True


@dataclass(frozen=True)
class Died:
    """A worker has died, and with it the job that it had.

    Attributes:
        reason: Why, as the end of a sentence about the job.
    """

    reason: str


class Slot(Protocol):
    """A place for one job at a time: a worker, started or not."""

    def survey(self, jobs: Sequence[Composed]) -> None:
        """Ask for what is known before the first run; the answer is a ``Survey`` or the error."""

    def run(self, job: Composed, files: Files | None) -> None:
        """Run a job; the answer is an ``Outcome``."""

    def stop(self) -> None:
        """Let the job write its state and end."""

    def kill(self) -> None:
        """End the worker at once."""


Content = Ready | Survey | Progress | Outcome | Died | Exception


class Engine(Protocol):
    """Starts workers."""

    def capacity(self) -> int:
        """How many workers there may be now."""

    def open(self) -> Slot:
        """Start a worker; once it is there, it is ``Ready``."""

    def wait(self, seconds: float) -> list[tuple[Slot, Content]]:
        """What is heard of the workers, after at most so many seconds."""

    def close(self) -> None:
        """End all workers."""
