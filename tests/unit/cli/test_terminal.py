"""Terminals without UTF-8."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from tests.helpers.report_runs import HOSTILE, result, write_run
from tta_bench.cli import app


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for method in ("source", HOSTILE):
        for seed in (0, 1):
            write_run(home / f"{len(method)} {seed}", result(method, seed), [{"fog": (4, seed)}])
    return home


COMMANDS = (["--help"], ["list", "settings"], ["report"], ["report", "--format", "markdown"])
ALL = """
import json, sys
from tta_bench.cli import app
for words in json.loads(sys.argv[1]):
    app(words, standalone_mode=False)
    print(chr(12))
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_command_prints_what_the_encoding_has_and_replaces_the_rest(home, encoding):
    commands = json.dumps([[*words, str(home)] if words[0] == "report" else words for words in COMMANDS])
    env = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", ALL, commands], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    *printed, end = done.stdout.decode(encoding).split("\f\n")
    assert len(printed) == len(COMMANDS)
    assert all(printed)
    assert end == ""
    mark = "~" if encoding == "ascii" else "±"
    for text in printed[2:]:
        assert f"12.5 {mark} 17.7" in text  # 0 and 25 %


def test_a_mistake_is_still_one_sentence(home):
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "tta_bench", "report", str(home), "--baseline", "tänt"]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: there is no baseline t?nt: choose one of ")


def test_in_a_terminal_something_is_shown_while_libraries_load():
    command = [sys.executable, "-m", "tta_bench", "config", "show", "method=source"]
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        shown = b""
        while b"seed: 0" not in shown:
            shown += os.read(leader, 1000)  # fails at the end
        process.terminate()
    os.close(leader)
    assert b"loading PyTorch" in shown.partition(b"seed: 0")[0]


def test_the_version():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"tta-bench {version('tta_bench')}\n")
