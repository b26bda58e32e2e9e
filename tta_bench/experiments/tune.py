"""Choose a method's hyper-parameters on the four validation corruptions, never on those that it is compared on."""

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

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the published learning rate, where no grid is given
PACKAGES = ("tta_bench", "torch", "timm")


@dataclass(frozen=True)
class Tuning:
    """A grid over the hyper-parameters of one method.

    Attributes:
        base: The words of all runs, validation data included.
        user: Those of them that the user wrote.
        candidates: The values that hold without tuning first, then every point of the grid.
        seeds: Every candidate runs with each.
        method: Name of the method.
        dataset: Name of the data set that the values are for.
        untuned: What the values that hold without tuning are: ``published``, or ``default`` of a class of the user's.
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
    """What the grid gave.

    Attributes:
        tuning: The grid.
        errors: Mean error of each candidate over the four corruptions and the seeds, in percent; None if a run failed.
        data: What was shown, as in ``result.json``.
        failures: Why runs failed.
    """

    tuning: Tuning
    errors: tuple[float | None, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    @property
    def best(self) -> int:
        """The candidate of the lowest error; the earlier of equal ones, so the untuned values before others.

        Raises:
            ConfigError: If all failed.
        """
        known = {k: error for k, error in enumerate(self.errors) if error is not None}
        if not known:
            raise ConfigError(f"every run failed, the first with: {self.failures[0]}")
        return min(known, key=known.__getitem__)

    @property
    def order(self) -> list[int]:
        """The candidates by error, the best first and the failed last."""
        return sorted(range(len(self.errors)), key=lambda k: math.inf if (e := self.errors[k]) is None else e)

    def error_of(self, k: int) -> str:
        """The error of a candidate in words."""
        error = self.errors[k]
        return "failed" if error is None else f"{error:.2f}"


def make_tuning(words: Words, grid: Sequence[str] = ()) -> Tuning:
    """Read ``method=tent dataset=... seeds=[0,1]`` and a grid such as ``lr=[0.001,0.01],momentum=[0,0.9]``.

    Raises:
        ConfigError: If a word is wrong, or names what is not for choosing: a test corruption or the test split.
    """
    launch, overrides = compose_launch(words)
    values = {word.key: word.value for word in overrides}
    if "method" not in values and "method._target_" not in values:
        raise ConfigError("say which method to tune, for example method=tent")
    if "seed" in values:
        raise ConfigError(f"every point of the grid runs with several seeds: write seeds=[{values['seed']}]")
    seeds = next((seeds_of(word) for word in overrides if word.key == "seeds"), (0,))
    user = tuple(word for word in overrides if word.key != "seeds")
    if values.get("dataset") in SEGMENTATION:
        raise ConfigError(f"{values['dataset']} has no validation corruptions: tune works on classified images only")
    base = (*_on_validation_data(values, user), *read_words([] if "tuned" in values else ["tuned=off"]))
    composed = compose_run(base)
    require(composed.config)
    dataset = composed.choices["dataset"].removesuffix("_validation")
    candidates = _candidates(composed, _read_grid(grid))
    method = composed.choices["method"]
    untuned = "published" if get_target(composed.config.method) in METHODS.values() else "default"
    return Tuning(base, user, candidates, seeds, method, dataset, untuned, launch)


def _on_validation_data(values: Mapping[str, Any], words: Sequence[Override]) -> tuple[Override, ...]:
    """The user's words, on validation data."""
    if values.get("dataset.split") == "test":
        raise ConfigError("dataset.split=test is not for choosing hyper-parameters: leave it out")
    own = "dataset.domains" in values
    if own:
        domains = values["dataset.domains"]
        _refuse_others([domains] if isinstance(domains, str) else domains, "dataset.domains names")
    dataset = str(values.get("dataset", "shapes_c")).removesuffix("_validation")
    if dataset in ("shapes_c", "scenes_c"):
        return read_words([f"dataset={dataset}_validation", *(word for word in words if word.key != "dataset")])
    return read_words([*words, *([] if own else [f"dataset.domains=[{','.join(VALIDATION)}]"])])


def _refuse_others(domains: Sequence[str], who: str) -> None:
    for name in domains:
        if name != "validation" and corruption_and_severity(str(name), 5)[0] not in VALIDATION:
            raise ConfigError(
                f"{who} {name}: hyper-parameters are chosen on the validation corruptions only, {', '.join(VALIDATION)}"
            )


def _read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    grid: dict[str, list[Any]] = {}
    for text in texts:
        for part in re.split(r",(?![^\[]*\])", text):  # commas outside of brackets
            word = read_word(part)
            if not isinstance(word.value, list) or not word.value:
                raise ConfigError(f"{part}: a grid lists values, for example lr=[0.001,0.01],momentum=[0.0,0.9]")
            grid[word.key.removeprefix("method.")] = word.value
    return grid


def _candidates(composed: Composed, grid: dict[str, list[Any]]) -> tuple[Values, ...]:
    method = plain(composed.config)["method"]
    if not grid:
        if not isinstance(method.get("lr"), float):
            raise ConfigError(f"{composed.choices['method']} has no learning rate: give a grid, --grid KEY=[A,B]")
        grid = {"lr": [float(f"{factor * method['lr']:.3g}") for factor in FACTORS]}
    for key, values in grid.items():
        for value in values:
            compose_run([*composed.words, *_words({key: value})])  # an unknown key or a wrong value is one sentence
        if any(word.key == f"method.{key}" for word in composed.words):
            raise ConfigError(f"method.{key} is in the grid and among the words: leave out one of them")
    untuned = {key: method[key] for key in grid}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return (untuned, *(point for point in points if point != untuned))


def _words(candidate: Values) -> list[Override]:
    return [word_for(f"method.{key}", value) for key, value in candidate.items()]


def _text(candidate: Values) -> str:
    return " ".join(map(str, _words(candidate)))


def tune(tuning: Tuning, console: Console) -> Tuned | None:
    """Run every candidate that has not been run.

    Returns:
        What the grid gave; None if only a shard of its runs was asked for.

    Raises:
        ConfigError: If the data hold a domain that methods are compared on; nothing has run then.
        ValueError: If the data or the model is wrong.
    """
    jobs = tuning.jobs()
    _refuse_others(build(jobs[0].config.dataset).domains, "the data show")
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
    """All candidates, the best on top."""
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
    """A file for ``configs/tuned``: the best values, and in a comment all that a reader needs to get them again."""
    tuning = done.tuning
    lasting = {word.key.removeprefix("method."): word.value for word in tuning.user if word.key.startswith("method.")}
    chosen = {"method": {**lasting, **tuning.candidates[done.best]}}
    words = [str(word) for word in tuning.base if word.key.partition(".")[0] not in NOT_IDENTITY]
    facts = [
        f"Chosen by tta-bench tune on {date.today().isoformat()}: the lowest mean error over {', '.join(VALIDATION)}.",
        f"Words: {' '.join(words)}; seeds {list(tuning.seeds)}",
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
    """Write the best values where runs find them, in the user's own folder of configurations, or into any file.

    Args:
        done: The grid's results.
        output: The file; by default ``<config_dir>/tuned/<dataset>/<method>.yaml``, or ``<dataset>_<method>.yaml`` here
            where there is no ``config_dir``.

    Returns:
        Where they are and how to use them.

    Raises:
        ConfigError: If all runs failed; nothing is written then.
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
        return f"{path} holds the best values: every run of {pair} with config_dir={folder} takes them"
    return (
        f"{path} holds the best values: as {Path('FOLDER') / name} they apply to every run of {pair} with "
        f"config_dir=FOLDER; for a single run, add {best}"
    )
