"""A run in processes of its own, which a signal to this one reaches too."""

from __future__ import annotations

import signal
import subprocess
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_apart(command: list[str]) -> None:
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
