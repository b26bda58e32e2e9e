"""Runs the program in the process of the tests."""

from __future__ import annotations

from typer.testing import CliRunner

from tta_bench.cli import app


def invoke(*words, home):
    """Run the program in this process, with runs and cache below ``home``."""
    places = [f"output={home}/runs", f"cache_dir={home}/cache"]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "logger=off", *places], catch_exceptions=True)
