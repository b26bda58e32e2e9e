"""Creates the loggers of a run from its configuration; all except W&B write to the run folder."""

from __future__ import annotations

import inspect
from pathlib import Path

from hydra_zen import get_target
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig
from rich.console import Console

from tta_bench.callbacks.checkpoint import Resumed
from tta_bench.config.compose import build
from tta_bench.config.words import ConfigError
from tta_bench.loggers.wandb_run import open_wandb
from tta_bench.report.runs import Result


def open_loggers(
    nodes: DictConfig, header: Result, folder: Path, console: Console, resumed: Resumed | None = None
) -> list[Logger]:
    """Create the loggers of a run.

    Args:
        nodes: Configuration node of each logger, by name.
        header: What is known about the run before it starts, in the form of ``result.json``.
        folder: The run folder, the default of loggers that take ``save_dir``.
        console: Where to print.
        resumed: Where the run resumes, if it does.

    Raises:
        ConfigError: If a logger cannot be created; the message says which and why.
    """
    loggers: list[Logger] = []
    for name, node in nodes.items():
        target = get_target(node)
        if target is open_wandb:
            loggers += build(node)(header, folder, console, resumed)
            continue
        takes_folder = "save_dir" in inspect.signature(target).parameters and "save_dir" not in node
        try:
            loggers.append(build(node, **({"save_dir": str(folder)} if takes_folder else {})))
        except (ImportError, TypeError, ValueError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"cannot create the logger {name} ({reason}): fix this, or use logger=off") from error
    return loggers
