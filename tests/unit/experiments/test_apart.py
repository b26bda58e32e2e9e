"""A signal to a bench reaches a run in separate processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

CHILD = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("state").write_text("written")
    sys.exit(3)
signal.signal(signal.{name}, stop)
pathlib.Path("ready").touch()
time.sleep(30)
"""
PARENT = "import sys; from tta_bench.experiments.apart import run_apart; run_apart([sys.executable, 'child.py'])"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_and_waited_for(tmp_path, signum):
    (tmp_path / "child.py").write_text(CHILD.format(name=signum.name))
    bench = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path)
    try:
        started = time.monotonic()
        while not (tmp_path / "ready").exists():
            assert time.monotonic() - started < 60
            time.sleep(0.05)
        bench.send_signal(signum)
        assert bench.wait(timeout=20) == 128 + signum
    finally:
        bench.kill()
        bench.wait()
    assert (tmp_path / "state").read_text() == "written"
