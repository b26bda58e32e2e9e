"""The loggers of a run, made from the nodes of its configuration; all but W&B write into the run folder."""

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
    """Make the loggers of a run.

    Args:
        nodes: By name, what makes each.
        header: What is known of the run before it starts, in the form of ``result.json``.
        folder: The run folder; a logger that takes ``save_dir`` and was given none writes there.
        console: Where to print.
        resumed: Where the run goes on, if it does.

    Raises:
        ConfigError: If one cannot be made; the message says which and why.
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
            raise ConfigError(f"the logger {name} cannot be made ({reason}): see to it, or use logger=off") from error
    return loggers
