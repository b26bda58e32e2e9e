"""The interface between the dispatcher and whatever starts its workers, and the messages of workers."""

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
        place: Its node and device, such as ``node2, cuda:1``.
        sees_output: Whether it writes to the same run folders as the driver.
    """

    place: str
    sees_output: bool = True


@dataclass(frozen=True)
class Died:
    """A worker has died, and its job with it.

    Attributes:
        reason: A clause such as ``its process died``.
    """

    reason: str


class Slot(Protocol):
    """A worker, ready or still starting, which runs one job at a time."""

    def survey(self, jobs: Sequence[Composed]) -> None:
        """Request a survey; the answer is a ``Survey`` or the error."""

    def run(self, job: Composed, files: Files | None) -> None:
        """Run a job; the answer is an ``Outcome``."""

    def stop(self) -> None:
        """Let the job write its state and stop."""

    def kill(self) -> None:
        """End the worker at once."""


Content = Ready | Survey | Progress | Outcome | Died | Exception


class Engine(Protocol):
    """Starts workers."""

    def capacity(self) -> int:
        """The maximum number of workers at present."""

    def open(self) -> Slot:
        """Start a worker; it answers ``Ready`` once it has started."""

    def wait(self, seconds: float) -> list[tuple[Slot, Content]]:
        """Messages of the workers; waits at most ``seconds`` for the first."""

    def close(self) -> None:
        """End all workers."""
