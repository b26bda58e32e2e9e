"""The command line: a file per group of commands."""

from tta_bench.cli.app import app

__all__ = ["app"]
