"""Verifies run folders: the consistency of their files, this machine's weights, data and code, and repeated runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from tta_bench.config.compose import Composed
from tta_bench.config.words import ConfigError
from tta_bench.experiments.doctor import Check
from tta_bench.experiments.run import Run
from tta_bench.ranks import is_single_device
from tta_bench.results.checks import check_run
from tta_bench.results.rows import BatchRow
from tta_bench.results.run_folder import read_results, whole_rows
from tta_bench.streams import Schedule

FACTS = ("stream_sha256", "weights_sha256", "data", "preprocess", "domains", "code_sha256")
"""Facts that must be equal on this machine for a run to give the same numbers."""
TOLERANCE = 1e-5
"""Allowed relative difference of diagnostics and confidences between processors; counts must be equal."""


def composed_from(result: Mapping[str, Any], output: str) -> Composed:
    """Load the configuration of a run folder to repeat the run; it may only refer to code of this package.

    Args:
        result: Content of ``result.json`` with the key ``folder``.
        output: Output folder of the new run.

    Raises:
        ConfigError: If ``config.yaml`` is missing, damaged or names code from outside this package.
    """
    path = Path(result["folder"]) / "config.yaml"
    try:
        config = OmegaConf.create(path.read_text(encoding="utf-8"))
    except Exception as error:  # the file or its YAML may be damaged in any way
        raise ConfigError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): the run cannot be repeated"
        ) from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path} is not a configuration: the run cannot be repeated")
    for target in _targets(OmegaConf.to_container(config)):
        if not target.startswith("tta_bench."):
            raise ConfigError(
                f"{path} refers to {target}, which is not part of this package: repeat the run with its own command"
            )
    config.output, config.logger, config.callbacks = output, {}, {}
    return Composed(config, {key: str(result[key]) for key in ("method", "setting", "dataset", "model")})


def _targets(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == "_target_":
                yield str(value)
            elif key not in ("logger", "callbacks"):  # these are left out
                yield from _targets(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _targets(value)


def repeat(folder: Path, output: str) -> Run:
    """Prepare the run of a folder to be repeated here, from its files alone.

    Raises:
        ConfigError: If there is not exactly one run, or its stream, weights, data or code differ here.
        ValueError: If data or weights are missing here.
    """
    results = read_results([folder])
    if len(results) > 1:
        raise ConfigError(f"{folder} contains {len(results)} runs: give the folder of a single run")
    run = Run(composed_from(results[0], output))
    stored = Schedule.load(Path(results[0]["folder"]) / "stream.json").fingerprint()
    header = run.header()
    changed = [key for key in FACTS if header[key] != results[0][key]]
    if stored != header["stream_sha256"] and "stream_sha256" not in changed:
        changed.insert(0, "stream.json")
    if changed:
        raise ConfigError(
            f"{folder} cannot be repeated here, because {', '.join(changed)} has changed since: "
            "restore it, or start a new run with the run's command"
        )
    return run


def verify(result: Mapping[str, Any], *, rerun: bool = False, batches: int | None = None) -> list[Check]:
    """Check the consistency of a run folder, compare it with this machine and, optionally, repeat the run.

    Args:
        result: Content of ``result.json`` with the key ``folder``, as returned by ``read_results``.
        rerun: Whether to repeat the run, if it was on a single device: several would verify it once each.
        batches: Number of batches to repeat, from the first; None repeats all.

    Returns:
        One line per check; a disagreement is a problem, and a check that is not possible here is a note.
    """
    checks = [
        Check(name, "; ".join(told) or "agrees", "problem" if told else "ok")
        for name, told in check_run(result).items()
    ]
    if checks[0].state == "problem":
        return checks
    if result["status"] != "done":
        return [*checks, Check("run", f"{result['status']}: no numbers to verify", "note")]
    with tempfile.TemporaryDirectory(prefix="tta_bench_") as place:
        try:
            composed = composed_from(result, place)
            if batches is not None:
                OmegaConf.update(composed.config, "trainer.limit_test_batches", batches, force_add=True)
            run = Run(composed)
        except (ValueError, OSError) as error:
            return [*checks, Check("machine", f"cannot be checked here: {error}", "note")]
        header = run.header()
        for key in FACTS:
            same = header[key] == result[key]
            checks.append(Check(key, "same on this machine" if same else _other(result[key], header[key]),
                                "ok" if same else "problem"))  # fmt: skip
        if header["versions"] != result["versions"]:
            checks.append(Check("versions", _other(result["versions"], header["versions"]), "note"))
        if rerun and not is_single_device(run.config.trainer.devices):
            command = f"tta-bench run --from {result['folder']} output=OTHER"
            checks.append(Check("rerun", f"a run on several devices is not repeated here: use {command}", "note"))
        elif rerun:
            again = run.execute(Console(quiet=True))
            before = whole_rows(Path(result["folder"]) / "batches.csv")[:batches]
            told = str(again.get("error") or "") or compare_rows(before, whole_rows(run.folder / "batches.csv"))
            checks.append(Check("rerun", told or f"{len(before)} batches are the same", "problem" if told else "ok"))
    return checks


def compare_rows(before: list[BatchRow], after: list[BatchRow]) -> str:
    """Say which batches differ, apart from their time; empty if there are none."""
    if len(before) != len(after):
        return f"{len(after)} batches instead of {len(before)}"
    differ = [(a.step, key) for a, b in zip(before, after, strict=True) if (key := _difference(a, b))]
    if not differ:
        return ""
    return f"{len(differ)} of {len(before)} batches differ, first batch {differ[0][0]} in {differ[0][1]}"


def _difference(a: BatchRow, b: BatchRow) -> str:
    one, other = asdict(a), asdict(b)
    return next((key for key in one if key != "seconds" and not _close(one[key], other[key])), "")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or isclose(a, b, rel_tol=TOLERANCE)
    return bool(a == b)


def _other(told: Any, here: Any) -> str:
    if isinstance(told, Mapping) and isinstance(here, Mapping):
        keys = [key for key in {**told, **here} if told.get(key) != here.get(key)]
        return "; ".join(f"{key} was {told.get(key)} and is {here.get(key)} here" for key in keys)
    return f"was {str(told)[:12]} and is {str(here)[:12]} here"
