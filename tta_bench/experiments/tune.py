"""Tunes hyper-parameters of a method on the four validation corruptions, never on those used in comparisons."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra_zen import get_target
from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tta_bench.config.compose import Composed, build, compose_launch, compose_run, compose_runs, plain, require
from tta_bench.config.launch import ONE_BY_ONE, Launch
from tta_bench.config.registry import SEGMENTATION
from tta_bench.config.request import seeds_of
from tta_bench.config.user_folder import user_folder
from tta_bench.config.words import ConfigError, Override, Words, read_word, read_words, word_for
from tta_bench.datasets.corruptions import VALIDATION
from tta_bench.datasets.corruptions.names import corruption_and_severity
from tta_bench.experiments.jobs import run_jobs, run_shard
from tta_bench.files import writing
from tta_bench.methods import METHODS
from tta_bench.results.identity import NOT_IDENTITY

Values = dict[str, Any]  # hyper-parameter -> value

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the published learning rate, if no grid is given
PACKAGES = ("tta_bench", "torch", "timm")


@dataclass(frozen=True)
class Tuning:
    """A grid over the hyper-parameters of one method.

    Attributes:
        base: The overrides of all runs, including the validation data.
        user: The user's part of ``base``.
        candidates: The untuned values first, then every point of the grid.
        seeds: Seeds with which every candidate is run.
        method: Name of the method.
        dataset: Name of the data set for which the values are tuned.
        untuned: Origin of the untuned values: ``published``, or ``default`` for a user's class.
        launch: How the runs are started.
    """

    base: tuple[Override, ...]
    user: tuple[Override, ...]
    candidates: tuple[Values, ...]
    seeds: tuple[int, ...]
    method: str
    dataset: str
    untuned: str = "published"
    launch: Launch = ONE_BY_ONE

    def jobs(self) -> list[Composed]:
        """Every candidate with every seed."""
        return compose_runs(
            [*self.base, *_words(candidate), word_for("seed", seed)]
            for candidate in self.candidates
            for seed in self.seeds
        )


@dataclass(frozen=True)
class Tuned:
    """Results of a grid.

    Attributes:
        tuning: The grid.
        errors: Mean error of each candidate over the four corruptions and the seeds, in percent; None if a run failed.
        data: The data, as in ``result.json``.
        failures: Reasons of failed runs.
    """

    tuning: Tuning
    errors: tuple[float | None, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    @property
    def best(self) -> int:
        """Index of the candidate with the lowest error; in a tie the earlier one, and thus the untuned values.

        Raises:
            ConfigError: If all runs failed.
        """
        known = {k: error for k, error in enumerate(self.errors) if error is not None}
        if not known:
            raise ConfigError(f"all runs failed, the first with: {self.failures[0]}")
        return min(known, key=known.__getitem__)

    @property
    def order(self) -> list[int]:
        """Indices of the candidates sorted by error, with failed ones last."""
        return sorted(range(len(self.errors)), key=lambda k: math.inf if (e := self.errors[k]) is None else e)

    def error_of(self, k: int) -> str:
        """Format the error of a candidate."""
        error = self.errors[k]
        return "failed" if error is None else f"{error:.2f}"


def make_tuning(words: Words, grid: Sequence[str] = ()) -> Tuning:
    """Parse ``method=tent dataset=... seeds=[0,1]`` and a grid such as ``lr=[0.001,0.01],momentum=[0,0.9]``.

    Raises:
        ConfigError: If an override is wrong, or selects a test corruption or the test split.
    """
    launch, overrides = compose_launch(words)
    values = {word.key: word.value for word in overrides}
    if "method" not in values and "method._target_" not in values:
        raise ConfigError("tune needs a method, for example method=tent")
    if "seed" in values:
        raise ConfigError(f"every point of the grid is run with several seeds: write seeds=[{values['seed']}]")
    seeds = next((seeds_of(word) for word in overrides if word.key == "seeds"), (0,))
    user = tuple(word for word in overrides if word.key != "seeds")
    if values.get("dataset") in SEGMENTATION:
        raise ConfigError(f"{values['dataset']} has no validation corruptions: tune only works for classification")
    base = (*_on_validation_data(values, user), *read_words([] if "tuned" in values else ["tuned=off"]))
    composed = compose_run(base)
    require(composed.config)
    dataset = composed.choices["dataset"].removesuffix("_validation")
    candidates = _candidates(composed, _read_grid(grid))
    method = composed.choices["method"]
    untuned = "published" if get_target(composed.config.method) in METHODS.values() else "default"
    return Tuning(base, user, candidates, seeds, method, dataset, untuned, launch)


def _on_validation_data(values: Mapping[str, Any], words: Sequence[Override]) -> tuple[Override, ...]:
    """The user's overrides, on validation data."""
    if values.get("dataset.split") == "test":
        raise ConfigError("dataset.split=test must not be used for tuning: leave it out")
    own = "dataset.domains" in values
    if own:
        domains = values["dataset.domains"]
        _refuse_others([domains] if isinstance(domains, str) else domains, "dataset.domains contains")
    dataset = str(values.get("dataset", "shapes_c")).removesuffix("_validation")
    if dataset in ("shapes_c", "scenes_c"):
        return read_words([f"dataset={dataset}_validation", *(word for word in words if word.key != "dataset")])
    return read_words([*words, *([] if own else [f"dataset.domains=[{','.join(VALIDATION)}]"])])


def _refuse_others(domains: Sequence[str], who: str) -> None:
    for name in domains:
        if name != "validation" and corruption_and_severity(str(name), 5)[0] not in VALIDATION:
            raise ConfigError(
                f"{who} {name}: hyper-parameters are tuned only on the validation corruptions {', '.join(VALIDATION)}"
            )


def _read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    grid: dict[str, list[Any]] = {}
    for text in texts:
        for part in re.split(r",(?![^\[]*\])", text):  # commas outside brackets
            word = read_word(part)
            if not isinstance(word.value, list) or not word.value:
                raise ConfigError(f"{part}: a grid is lists of values, for example lr=[0.001,0.01],momentum=[0.0,0.9]")
            grid[word.key.removeprefix("method.")] = word.value
    return grid


def _candidates(composed: Composed, grid: dict[str, list[Any]]) -> tuple[Values, ...]:
    method = plain(composed.config)["method"]
    if not grid:
        if not isinstance(method.get("lr"), float):
            raise ConfigError(f"{composed.choices['method']} has no learning rate: set a grid with --grid KEY=[A,B]")
        grid = {"lr": [float(f"{factor * method['lr']:.3g}") for factor in FACTORS]}
    for key, values in grid.items():
        for value in values:
            compose_run([*composed.words, *_words({key: value})])  # reports an unknown key or a wrong value
        if any(word.key == f"method.{key}" for word in composed.words):
            raise ConfigError(f"method.{key} is both in the grid and an override: leave out one of them")
    untuned = {key: method[key] for key in grid}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return (untuned, *(point for point in points if point != untuned))


def _words(candidate: Values) -> list[Override]:
    return [word_for(f"method.{key}", value) for key, value in candidate.items()]


def _text(candidate: Values) -> str:
    return " ".join(map(str, _words(candidate)))


def tune(tuning: Tuning, console: Console) -> Tuned | None:
    """Run every candidate that has not been run yet.

    Returns:
        The results of the grid; None if only a shard of its runs was requested.

    Raises:
        ConfigError: If the data contain a domain used in comparisons; this is checked before the first run.
        ValueError: If the data or the model is wrong.
    """
    jobs = tuning.jobs()
    _refuse_others(build(jobs[0].config.dataset).domains, "the data contain")
    if tuning.launch.shard is not None:
        run_shard(jobs, console, tuning.launch.shard, tuning.launch)
        return None
    results = run_jobs(jobs, console, tuning.launch)
    n = len(tuning.seeds)
    by_candidate = [results[k : k + n] for k in range(0, len(results), n)]
    errors = tuple(
        fmean(result["mean_error"] for result in part) if all(r["status"] == "done" for r in part) else None
        for part in by_candidate
    )
    failures = tuple(str(result["error"]) for result in results if result["status"] != "done")
    return Tuned(tuning, errors, results[0].get("data", {}), failures)


def tuning_table(done: Tuned) -> Table:
    """Table of all candidates, with the best first."""
    tuning = done.tuning
    table = Table(title=escape(f"{tuning.method} on {tuning.dataset}, validation corruptions"))
    for key in tuning.candidates[0]:
        table.add_column(escape(key), justify="right")
    table.add_column("mean error (%)", justify="right")
    table.add_column("")
    for k in done.order:
        cells = [*map(str, tuning.candidates[k].values()), done.error_of(k), tuning.untuned if k == 0 else ""]
        table.add_row(*cells, style="bold green" if k == done.order[0] else "")
    return table


def tuned_yaml(done: Tuned) -> str:
    """Format a file for ``configs/tuned``: the best values, and a comment with all that is needed to reproduce them."""
    tuning = done.tuning
    lasting = {word.key.removeprefix("method."): word.value for word in tuning.user if word.key.startswith("method.")}
    chosen = {"method": {**lasting, **tuning.candidates[done.best]}}
    words = [str(word) for word in tuning.base if word.key.partition(".")[0] not in NOT_IDENTITY]
    facts = [
        f"Chosen by tta-bench tune on {date.today().isoformat()}: the lowest mean error over {', '.join(VALIDATION)}.",
        f"Overrides: {' '.join(words)}; seeds {list(tuning.seeds)}",
        f"Data: {', '.join(f'{key} {value}' for key, value in done.data.items())}",
        f"Versions: {', '.join(f'{name} {version(name)}' for name in PACKAGES)}",
        "Grid, with errors in %:",
        *(
            f"  {_text(tuning.candidates[k])}: {done.error_of(k)}{f' ({tuning.untuned})' * (k == 0)}"
            for k in done.order
        ),
    ]
    comment = "\n".join(f"# {fact}" for fact in facts)
    return f"# @package _global_\n{comment}\n{OmegaConf.to_yaml(chosen)}"


def write_tuned(done: Tuned, output: Path | None = None) -> str:
    """Write the best values to the user's configuration folder, where runs find them, or to any file.

    Args:
        done: The results of the grid.
        output: The file; by default ``<config_dir>/tuned/<dataset>/<method>.yaml``, or ``<dataset>_<method>.yaml`` in
            the current folder if there is no ``config_dir``.

    Returns:
        A sentence that says where they are and how to use them.

    Raises:
        ConfigError: If all runs failed, in which case nothing is written.
        WriteError: If the disk does not take the file.
    """
    tuning, text = done.tuning, tuned_yaml(done)
    folder = user_folder(tuning.user)
    name = Path("tuned", tuning.dataset, f"{tuning.method}.yaml")
    path = output or (folder / name if folder else Path(f"{tuning.dataset}_{tuning.method}.yaml"))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    pair, best = f"{tuning.method} on {tuning.dataset}", _text(tuning.candidates[done.best])
    if folder and path == folder / name:
        return f"the best values are in {path}: every run of {pair} with config_dir={folder} uses them"
    return (
        f"the best values are in {path}: moved to {Path('FOLDER') / name}, they apply to every run of {pair} with "
        f"config_dir=FOLDER; for a single run, add {best}"
    )
