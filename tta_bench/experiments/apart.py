"""Run a command in a separate session and forward signals to it."""

from __future__ import annotations

import signal
import subprocess
from types import FrameType

from tta_bench.callbacks.interrupts import SIGNALS


def run_apart(command: list[str]) -> None:
    """Run a command in a new session, and forward the signals that would otherwise end only this process.

    Raises:
        SystemExit: If a signal arrived; by then the command has ended and written its state to disk.
    """
    process, received = subprocess.Popen(command, start_new_session=True), []

    def forward(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        process.send_signal(signum)

    before = {number: signal.signal(number, forward) for number in SIGNALS}
    try:
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
