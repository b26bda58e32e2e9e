"""SIGTERM and SIGINT wait for the end of the batch, so that the state can be written first."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(SystemExit):
    """The user or the machine stopped the run; ends the process as that signal does.

    Args:
        signum: The signal.
        step: The batch at which the run goes on.
    """

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(128 + signum)
        self.step = step

    def __str__(self) -> str:
        return f"interrupted at batch {self.step}: run the same command to go on"


class Interrupts:
    """While entered, notes the first signal instead of obeying it; the second one is obeyed at once.

    To be entered before the trainer starts: Lightning, which handles SIGTERM too, calls a handler that it finds.

    Attributes:
        signum: The signal that came, or None.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obey(self, step: int) -> None:
        """End the process if a signal came.

        Raises:
            Interrupted: If one came.
        """
        if self.signum is not None:
            raise Interrupted(self.signum, step)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise KeyboardInterrupt
        self.signum = signum
