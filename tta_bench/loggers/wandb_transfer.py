"""Transfer of finished runs to Weights & Biases and back; the files that a report needs are part of the W&B run."""

from __future__ import annotations

import os
import shlex
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console

from tta_bench.console import counted, say
from tta_bench.loggers.wandb_compare import PREFIX, log_comparisons
from tta_bench.loggers.wandb_names import RUN_FOLDER, group_name, run_name
from tta_bench.loggers.wandb_run import has_key, load_wandb, start, wandb_errors, write_outcome
from tta_bench.report.groups import group_runs
from tta_bench.report.runs import Result, RunRecord
from tta_bench.results.identity import identity
from tta_bench.results.rows import logged_numbers
from tta_bench.results.run_folder import FILES, empty_tally, read_results, whole_rows

NO_KEY = "W&B has no API key here: run wandb login, or set WANDB_API_KEY"


def to_wandb(folders: Sequence[Path], place: str, baseline: str, console: Console) -> None:
    """Upload finished runs, and a comparison per group, to a project, with the same names as when logged live.

    A run keeps its id in W&B, so runs that were uploaded before are not changed. With ``WANDB_MODE=offline``,
    everything is written as offline runs, which ``wandb sync`` uploads.

    Args:
        folders: Run folders, or folders above them.
        place: ``entity/project``.
        baseline: Baseline of the gains in the comparison.
        console: Where to print.

    Raises:
        FileNotFoundError: If there are no runs.
        ValueError: If no run is finished, the baseline does not exist, or W&B rejects the runs.
    """
    entity, project = read_place(place)
    results = read_results(folders)
    finished = [result for result in results if result["status"] in ("done", "failed")]
    if not finished:
        raise ValueError(f"no run in {', '.join(map(str, folders))} is finished: repeat its command to resume it")
    if left := len(results) - len(finished):
        say(console, f"{left} of {len(results)} runs are unfinished and left out: repeat their commands")
    groups = group_runs(map(RunRecord, finished), baseline)
    where: dict[str, Any] = {"entity": entity, "project": project, "mode": _mode()}
    try:
        given = [_give(result, where) for result in finished]
        log_comparisons(groups, folders[0], console, **where)
    except wandb_errors() as error:
        raise ValueError(f"W&B rejected the runs for {place}: {error}") from error
    told = f"{counted(sum(given), 'run')} uploaded to {place}, {len(given) - sum(given)} already there"
    if where["mode"] == "offline":
        places = shlex.join(map(str, folders))
        told += f"; to upload them: find {places} -path '*/wandb/offline-run-*' -prune -exec wandb sync {{}} +"
    say(console, told)


def from_wandb(place: str, console: Console) -> list[Path]:
    """Download the run folders of a project's runs.

    Args:
        place: ``entity/project``.
        console: Where to print.

    Returns:
        The run folders, below ``$TTA_BENCH_CACHE/wandb``.

    Raises:
        ValueError: If there is no API key, or the project does not exist or has no runs.
    """
    entity, project = read_place(place)
    if not has_key():
        raise ValueError(NO_KEY)
    home = Path(os.environ.get("TTA_BENCH_CACHE", "~/.cache/tta_bench")).expanduser() / "wandb" / entity / project
    try:
        runs = list(load_wandb().Api().runs(f"{entity}/{project}", filters={"jobType": "run"}))
        folders = [folder for run in runs if (folder := _fetch(run, home / run.id))]
    except wandb_errors(ValueError, zipfile.BadZipFile) as error:  # an unknown project is a ValueError
        raise ValueError(f"cannot download the runs of {place} from W&B: {error}") from error
    if not folders:
        raise ValueError(f"none of the {len(runs)} runs of {place} is a finished run of tta_bench")
    if left := len(runs) - len(folders):
        say(console, f"{left} of {len(runs)} runs of {place} are unfinished or not of tta_bench, and are left out")
    return folders


def read_place(place: str) -> tuple[str, str]:
    """Split ``entity/project``.

    Raises:
        ValueError: If the argument does not have this form.
    """
    entity, _, project = place.partition("/")
    if not entity or not project or "/" in project:
        raise ValueError(f"{place!r} is not a W&B project: it must have the form entity/project")
    return entity, project


def _mode() -> str:
    mode = os.environ.get("WANDB_MODE", "online")
    if mode not in ("online", "offline"):
        raise ValueError(f"WANDB_MODE={mode} uploads nothing: set it to online or offline")
    if mode == "online" and not has_key():
        raise ValueError(NO_KEY)
    return mode


def _give(result: Result, where: dict[str, Any]) -> bool:
    """Upload a run unless it has already ended in W&B; return whether it was uploaded."""
    folder = Path(result["folder"])
    run_id = _run_id(folder, result)
    if where["mode"] == "online" and _has_ended(f"{where['entity']}/{where['project']}/{run_id}"):
        return False
    rows = whole_rows(folder / "batches.csv")
    run = start(result, folder, id=run_id, **where)
    try:
        run.define_metric("stream/step")
        run.define_metric("*", step_metric="stream/step")
        tally = empty_tally(result, RunRecord(result).planned_steps or 0)
        for row in rows:
            tally.add(row)
            run.log(logged_numbers(row, tally))
        write_outcome(run, result, folder)
    finally:
        run.finish(exit_code=int(result["status"] != "done"))
    return True


def _run_id(folder: Path, result: Result) -> str:
    """Id of the W&B run that was logged live, if any, else one derived from everything that determines the numbers."""
    files = sorted(folder.glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.parent.name.removeprefix("offline-"))
    ids = [known for path in files if not (known := path.stem.removeprefix("run-")).startswith(PREFIX)]
    facts = {**identity(result), "name": run_name(result), "group": group_name(result)}
    return ids[-1] if ids else sha256(repr(sorted(facts.items())).encode()).hexdigest()[:16]


def _has_ended(path: str) -> bool:
    try:
        run = load_wandb().Api().run(path)
        return run.state in ("finished", "failed") and "status" in run.summary
    except wandb_errors(ValueError):
        return False


def _fetch(run: Any, folder: Path) -> Path | None:
    """Download the run folder; None if the W&B run has none."""
    for file in run.files(names=[RUN_FOLDER]):
        file.download(root=str(folder), replace=True).close()
        with zipfile.ZipFile(folder / RUN_FOLDER) as archive:
            for name in set(FILES) & set(archive.namelist()):
                archive.extract(name, folder)
        return folder
    return None
