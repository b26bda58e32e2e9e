"""Runs that W&B stored offline, and the command that uploads them. Does not import wandb."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

RUNS = "wandb/offline-run-*"


def sync_command(folders: Sequence[Path]) -> str | None:
    """The command that uploads what W&B stored offline of these runs and of their comparison.

    Args:
        folders: The run folders.

    Returns:
        The command; None if everything was uploaded.
    """
    waiting = [folder for folder in folders if _holds_offline_runs(folder)]
    if len(waiting) == 1:
        patterns = waiting
    else:  # one pattern for each setting, however many runs there are
        patterns = list(dict.fromkeys(folder.parents[1] / "*" / "*" for folder in waiting))
    homes = dict.fromkeys(folder.parents[1] for folder in waiting)
    places = [*patterns, *filter(_holds_offline_runs, homes)]
    return " ".join(["wandb sync", *(_quoted(place / RUNS) for place in places)]) if places else None


def _holds_offline_runs(folder: Path) -> bool:
    return any(True for _ in _offline_runs(folder))


def _offline_runs(folder: Path) -> Iterator[Path]:
    """The offline runs in a folder that were not uploaded; W&B leaves a mark beside those that were."""
    return (run for run in folder.glob(RUNS) if not any(run.glob("*.wandb.synced")))


def _quoted(pattern: Path) -> str:
    """A pattern for the shell, with everything quoted but its asterisks."""
    return "*".join(shlex.quote(part) if part else "" for part in str(pattern).split("*"))
