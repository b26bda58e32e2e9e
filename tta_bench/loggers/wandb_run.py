"""Weights & Biases: one run per (method, seed), grouped by the stream."""

from __future__ import annotations

import os
import secrets
import zipfile
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lightning.pytorch.loggers import Logger, WandbLogger
from rich.console import Console

from tta_bench.callbacks.checkpoint import Resumed
from tta_bench.console import say
from tta_bench.loggers.wandb_names import RUN_FOLDER, SUMMARY, config_of, group_name, run_name
from tta_bench.report.runs import Result
from tta_bench.results.run_folder import FILES

OF_ONE_RUN = (
    "WANDB_RUN_ID", "WANDB_NAME", "WANDB_RUN_NAME", "WANDB_RUN_GROUP", "WANDB_JOB_TYPE", "WANDB_RUN_JOB_TYPE",
    "WANDB_TAGS", "WANDB_RUN_TAGS", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_FORK_FROM", "WANDB_SWEEP_ID",
    "WANDB_SWEEP_PARAM_PATH",
)  # fmt: skip
"""Environment variables that identify one run. A bench has many, each with its own id, name and group."""
LEGACY_HOST = "api.wandb.ai"
"""Host under which an API key may still be stored, although the server has moved."""


def open_wandb(
    header: Result,
    folder: Path,
    console: Console,
    resumed: Resumed | None = None,
    *,
    project: str = "tta_bench",
    entity: str | None = None,
    mode: Literal["auto", "online", "offline"] = "auto",
) -> list[Logger]:
    """Start the W&B run, unless W&B fails or ``WANDB_MODE=disabled``; the run folder has everything in any case.

    A resumed run continues its W&B run if that is online. The files of an offline run cannot be appended to: a new one
    is started in the same group, with the earlier run and step as ``resumed_from`` in its configuration.

    Args:
        header: What is known about the run before it starts, in the form of ``result.json``.
        folder: The run folder.
        console: Where to print.
        resumed: Where the run resumes, if it does.
        project: The W&B project.
        entity: The user or team that owns it; None uses W&B's default.
        mode: ``auto`` is online if W&B knows an API key, else offline.
    """
    place = wandb_mode(mode)
    if place == "disabled":
        return []
    earlier = resumed.state["wandb"] if resumed else {}
    goes_on = bool(earlier) and place == "online" and not earlier["offline"]
    config = {}
    if resumed and earlier and not goes_on:
        config["resumed_from"] = {"run": earlier["id"], "step": resumed.step}
    try:
        started = start(
            header,
            folder,
            config=config,
            project=project,
            entity=entity,
            mode=place,
            id=earlier["id"] if goes_on else None,
            resume="allow" if goes_on else None,
        )
    except wandb_errors() as error:
        say(console, f"W&B could not start ({error}); continuing without it", "yellow")
        return []
    return [WandbLogger(experiment=started, save_dir=str(folder))]


def start(result: Result, folder: Path, *, config: dict[str, Any] | None = None, **place: Any) -> Any:
    """Start the W&B run of a run.

    Args:
        result: What is known about it, in the form of ``result.json``.
        folder: Where W&B stores its files.
        config: Further entries of the W&B configuration.
        place: Project, entity, mode and further arguments of ``wandb.init``.

    Raises:
        wandb.Error: If W&B fails.
    """
    tags = [result["method"], result["setting"], result["dataset"]]
    named: dict[str, Any] = {"name": run_name(result), "group": group_name(result), "job_type": "run", "tags": tags}
    return init(folder, config={**config_of(result), **(config or {})}, **named, **place)


def init(folder: Path, *, id: str | None = None, **arguments: Any) -> Any:
    """Call ``wandb.init`` with a folder for its files, ignoring any run set in the environment; see ``OF_ONE_RUN``.

    Args:
        folder: Where W&B stores its files.
        id: The run's id; None creates a new one.
        arguments: Further arguments of ``wandb.init``.
    """
    wandb = load_wandb()
    named = {key: os.environ.pop(key) for key in OF_ONE_RUN if key in os.environ}
    settings = wandb.Settings(init_timeout=60, console="off")
    try:
        return wandb.init(dir=str(folder), id=id or secrets.token_hex(4), settings=settings, **arguments)
    finally:
        os.environ.update(named)


def load_wandb() -> Any:
    """Import wandb without output on the terminal."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def wandb_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Exceptions that W&B raises when it fails, and more."""
    return load_wandb().Error, OSError, *more


def wandb_mode(mode: str = "auto") -> str:
    """Resolve the W&B mode ``auto``; other modes are returned unchanged."""
    return os.environ.get("WANDB_MODE", "online" if has_key() else "offline") if mode == "auto" else mode


def has_key() -> bool:
    """Whether W&B has credentials: in the environment or in the netrc file that ``wandb login`` writes."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = {urlsplit(server()).netloc} | (set() if "WANDB_BASE_URL" in os.environ else {LEGACY_HOST})
    try:
        known = netrc(os.environ.get("NETRC"))
    except (OSError, NetrcParseError):
        return False
    return any(known.authenticators(host) is not None for host in hosts)


def server() -> str:
    """Address of the W&B server."""
    return os.environ.get("WANDB_BASE_URL") or load_wandb().Settings().base_url


def run_id(loggers: list[Logger]) -> dict[str, Any]:
    """Facts about the W&B run that are needed to resume it later; empty if there is none."""
    runs = [logger.experiment for logger in loggers if isinstance(logger, WandbLogger)]
    return {"id": runs[0].id, "offline": runs[0].offline} if runs else {}


def summarize_wandb(loggers: list[Logger], result: Result, folder: Path, console: Console) -> None:
    """Log the summary, the table of domains and the run folder to W&B."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            try:
                write_outcome(logger.experiment, result, folder)
            except wandb_errors() as error:
                say(console, f"W&B did not get the result ({error}); it is in {folder}", "yellow")


def write_outcome(experiment: Any, result: Result, folder: Path) -> None:
    """Log the result of a finished run; ``report --from-wandb`` reads the packed run folder."""
    wandb = load_wandb()
    kind = "iou" if "domain_iou" in result else "error"
    rows = [[name, value, result["num_samples"][name]] for name, value in result[f"domain_{kind}"].items()]
    experiment.log({f"domain_{kind}": wandb.Table(columns=["domain", kind, "samples"], data=rows)})
    experiment.summary.update({key: result.get(key) for key in SUMMARY})
    packed = Path(experiment.dir) / RUN_FOLDER
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            if (folder / name).is_file():
                archive.write(folder / name, name)
    experiment.save(str(packed), base_path=experiment.dir, policy="now")


def close_wandb(loggers: list[Logger], *, failed: bool) -> None:
    """End the W&B run as finished or failed, so that the next method gets its own."""
    if any(isinstance(logger, WandbLogger) for logger in loggers):
        load_wandb().finish(exit_code=int(failed))
