"""The command line: one file per group of commands."""

from tta_bench.cli.app import app

__all__ = ["app"]
