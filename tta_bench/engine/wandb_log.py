"""Weights & Biases: one run per (method, seed), grouped by the stream."""

from __future__ import annotations

import os
from netrc import NetrcParseError, netrc
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import Logger, WandbLogger
from rich.console import Console

if TYPE_CHECKING:
    from tta_bench.callbacks.checkpoint import Resumed
    from tta_bench.engine.run import Run

MODES = ("auto", "online", "offline")
SUMMARY = (
    "status", "mean_error", "sample_error", "forward_per_sample", "backward_per_sample", "coreset_size", "seconds",
    "seconds_per_batch_median", "peak_memory_bytes", "trainable_parameters", "extra_parameters",
)  # fmt: skip


def open_wandb(run: Run, console: Console, resumed: Resumed | None = None) -> list[Logger]:
    """Start the W&B run, or none if it is switched off or W&B cannot start; the run folder has everything anyway.

    A resumed run goes on in its W&B run if that is online. Files of an offline run cannot be appended to: then a new
    one starts in the same group, and its configuration says ``resumed_from`` which run and step.

    Args:
        run: The run.
        console: Where to print.
        resumed: Where the run goes on, if it does.

    Raises:
        ValueError: If ``logger.mode`` is unknown.
    """
    settings = run.config.logger
    if settings.kind == "off":
        return []
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    if settings.mode not in MODES:
        raise ValueError(f"logger.mode must be one of {', '.join(MODES)}; got {settings.mode!r}")
    mode: Any = wandb_mode(settings.mode)
    earlier = resumed.state["wandb"] if resumed else {}
    goes_on = bool(earlier) and mode == "online" and not earlier["offline"]
    config = run._header()
    if resumed and earlier and not goes_on:
        config["resumed_from"] = {"run": earlier["id"], "step": resumed.step}
    group = f"{run.choices['dataset']}/{run.choices['setting']}/{run.schedule.short}"
    try:
        started = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=f"{run.choices['method']}-seed{run.seed}",
            group=group,
            job_type="run",
            tags=[run.choices["method"], run.choices["setting"], run.choices["dataset"]],
            config=config,
            id=earlier["id"] if goes_on else None,
            resume="allow" if goes_on else None,
            dir=str(run.folder),
            mode=mode,
            settings=wandb.Settings(init_timeout=60, console="off"),
        )
    except (wandb.Error, OSError) as error:
        console.print(f"W&B could not start ({error}); going on without it", style="yellow")
        return []
    return [WandbLogger(experiment=started, save_dir=str(run.folder))]


def wandb_mode(mode: str = "auto") -> str:
    """The mode of W&B that ``auto`` means here; another one is itself."""
    return os.environ.get("WANDB_MODE", "online" if _has_key() else "offline") if mode == "auto" else mode


def _has_key() -> bool:
    """Whether W&B has credentials: in the environment or in the netrc file that ``wandb login`` writes."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc(os.environ.get("NETRC")).authenticators(urlsplit(server()).hostname or "") is not None
    except (OSError, NetrcParseError):
        return False


def server() -> str:
    """Address of the W&B server."""
    return os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")


def segment(loggers: list[Logger]) -> dict[str, Any]:
    """Which W&B run this is, to go on from it later; empty without one."""
    runs = [logger.experiment for logger in loggers if isinstance(logger, WandbLogger)]
    return {"id": runs[0].id, "offline": runs[0].offline} if runs else {}


def summarize_wandb(loggers: list[Logger], result: dict[str, Any]) -> None:
    """Write the summary and the table of errors per domain."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            rows = [[name, error, result["num_samples"][name]] for name, error in result["domain_error"].items()]
            logger.experiment.log({"domain_error": wandb.Table(columns=["domain", "error", "samples"], data=rows)})
            logger.experiment.summary.update({key: result.get(key) for key in SUMMARY})


def close_wandb(loggers: list[Logger], *, failed: bool) -> None:
    """End the W&B run as finished or failed, so that the next method gets one of its own."""
    if loggers:
        import wandb

        wandb.finish(exit_code=int(failed))
