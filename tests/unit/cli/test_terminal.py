"""Terminals without UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.report_runs import HOSTILE, result, write_run


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for method in ("source", HOSTILE):
        for seed in (0, 1):
            write_run(home / f"{len(method)} {seed}", result(method, seed), [{"fog": (4, seed)}])
    return home


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("words", [["--help"], ["report"], ["report", "--format", "markdown"], ["list", "settings"]])
def test_every_command_prints_what_the_encoding_has_and_replaces_the_rest(home, encoding, words):
    words = [*words, str(home)] if words[0] == "report" else words
    env = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", "tta_bench", *words], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    if words[0] == "report":
        mark = "~" if encoding == "ascii" else "±"
        assert f"12.5 {mark} 17.7" in text  # 0 and 25 %


def test_a_mistake_is_still_one_sentence(home):
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "tta_bench", "report", str(home), "--baseline", "tänt"]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: there is no baseline t?nt: choose one of ")
