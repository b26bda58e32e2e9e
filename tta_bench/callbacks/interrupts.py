"""Defer SIGTERM and SIGINT to the end of the batch, so that the state can be written first."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals that end a run after its current batch."""


class Interrupted(SystemExit):
    """The run was stopped by a signal; exits with the exit code of that signal.

    Args:
        signum: The signal.
        step: The batch at which the run will resume.
    """

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(128 + signum)
        self.step = step

    def __str__(self) -> str:
        return f"interrupted at batch {self.step}: run the same command again to resume"


class Interrupts:
    """A context manager that records the first signal instead of obeying it; a second one takes effect immediately.

    It must be entered before the trainer starts: Lightning's own SIGTERM handler then calls this one.

    Attributes:
        signum: The signal received, or None.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # other threads cannot install handlers
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obey(self, step: int) -> None:
        """End the process if a signal was received.

        Raises:
            Interrupted: If one was received.
        """
        if self.signum is not None:
            raise Interrupted(self.signum, step)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise KeyboardInterrupt
        self.signum = signum
