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

from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tta_bench.config.compose import Composed, build, compose_run, plain, require
from tta_bench.config.registry import SEGMENTATION, config_folder
from tta_bench.config.words import ConfigError, dataset_of, read_word, seeds_of
from tta_bench.datasets.corruptions import VALIDATION
from tta_bench.datasets.corruptions.names import corruption_and_severity
from tta_bench.experiments.jobs import run_jobs
from tta_bench.files import writing
from tta_bench.results.identity import NOT_IDENTITY

Values = dict[str, Any]  # hyper-parameter -> value

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the published learning rate, where no grid is given
PACKAGES = ("tta_bench", "torch", "timm")
# The user's words that belong into the file beside the chosen values, because these were chosen for them.
LASTING = ("method.", "setting.batch_size=")


@dataclass(frozen=True)
class Tuning:
    """A grid over the hyper-parameters of one method.

    Attributes:
        base: The words of all runs, validation data included.
        user: Those of them that the user wrote.
        candidates: The published values first, then every point of the grid.
        seeds: Every candidate runs with each.
        method: Name of the method.
        dataset: Name of the data set that the values are for.
    """

    base: tuple[str, ...]
    user: tuple[str, ...]
    candidates: tuple[Values, ...]
    seeds: tuple[int, ...]
    method: str
    dataset: str

    def jobs(self) -> list[Composed]:
        """Every candidate with every seed."""
        return [
            compose_run([*self.base, *_words(candidate), f"seed={seed}"])
            for candidate in self.candidates
            for seed in self.seeds
        ]


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
        """The candidate of the lowest error; the earlier of equal ones, so the published values before others.

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


def make_tuning(words: Sequence[str], grid: Sequence[str] = ()) -> Tuning:
    """Read ``method=tent dataset=... seeds=[0,1]`` and a grid such as ``lr=[0.001,0.01],momentum=[0,0.9]``.

    Raises:
        ConfigError: If a word is wrong, or names what is not for choosing: a test corruption or the test split.
    """
    values = {word.partition("=")[0]: read_word(word) for word in words}
    if "method" not in values:
        raise ConfigError("say which method to tune, for example method=tent")
    if "seed" in values:
        raise ConfigError(f"every point of the grid runs with several seeds: write seeds=[{values['seed']}]")
    seeds = next((seeds_of(word) for word in words if word.startswith("seeds=")), [0])
    user = [word for word in words if not word.startswith("seeds=")]
    base = (*_on_validation_data(values, user), *([] if "tuned" in values else ["tuned=off"]))
    if dataset_of(words) in SEGMENTATION:
        raise ConfigError(f"{dataset_of(words)} has no validation corruptions: tune works on classified images only")
    composed = compose_run(base)
    require(composed.config)
    dataset = composed.choices["dataset"].removesuffix("_validation")
    candidates = _candidates(composed, _read_grid(grid))
    return Tuning(base, tuple(user), candidates, tuple(seeds), composed.choices["method"], dataset)


def _on_validation_data(values: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The user's words, on validation data."""
    if values.get("dataset.split") == "test":
        raise ConfigError("dataset.split=test is not for choosing hyper-parameters: leave it out")
    own = "dataset.domains" in values
    if own:
        domains = values["dataset.domains"]
        _refuse_others([domains] if isinstance(domains, str) else domains, "dataset.domains names")
    if str(values.get("dataset", "shapes_c")).startswith("shapes_c"):
        return ["dataset=shapes_c_validation", *(word for word in words if not word.startswith("dataset="))]
    return [*words, *([] if own else [f"dataset.domains=[{','.join(VALIDATION)}]"])]


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
            key, values = part.partition("=")[0], read_word(part)
            if not isinstance(values, list) or not values:
                raise ConfigError(f"{part}: a grid lists values, for example lr=[0.001,0.01],momentum=[0.0,0.9]")
            grid[key.removeprefix("method.")] = values
    return grid


def _candidates(composed: Composed, grid: dict[str, list[Any]]) -> tuple[Values, ...]:
    method = plain(composed.config)["method"]
    if not grid:
        if not isinstance(method.get("lr"), float):
            raise ConfigError(f"{composed.choices['method']} has no learning rate: give a grid, --grid KEY=[A,B]")
        grid = {"lr": [float(f"{factor * method['lr']:.3g}") for factor in FACTORS]}
    for key, values in grid.items():
        compose_run([*composed.words, *_words({key: values[0]})])  # an unknown key is one sentence
        if any(word.startswith(f"method.{key}=") for word in composed.words):
            raise ConfigError(f"method.{key} is in the grid and among the words: leave out one of them")
    published = {key: method[key] for key in grid}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return (published, *(point for point in points if point != published))


def _words(candidate: Values) -> list[str]:
    return [f"method.{key}={'null' if value is None else value}" for key, value in candidate.items()]


def tune(tuning: Tuning, console: Console) -> Tuned:
    """Run every candidate that has not been run.

    Raises:
        ConfigError: If the data hold a domain that methods are compared on; nothing has run then.
        ValueError: If the data or the model is wrong.
    """
    jobs = tuning.jobs()
    _refuse_others(build(jobs[0].config.dataset).domains, "the data show")
    results = run_jobs(jobs, console)
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
        cells = [*map(str, tuning.candidates[k].values()), done.error_of(k), "published" if k == 0 else ""]
        table.add_row(*cells, style="bold green" if k == done.order[0] else "")
    return table


def tuned_yaml(done: Tuned) -> str:
    """A file for ``configs/tuned``: the best values, and in a comment all that a reader needs to get them again."""
    tuning = done.tuning
    chosen: dict[str, Any] = {"method": dict(tuning.candidates[done.best])}
    for word in tuning.user:
        if word.startswith(LASTING):
            group, _, key = word.partition("=")[0].partition(".")
            chosen.setdefault(group, {})[key] = read_word(word)
    words = [word for word in tuning.base if re.split("[.=]", word)[0] not in NOT_IDENTITY]
    facts = [
        f"Chosen by tta-bench tune on {date.today().isoformat()}: the lowest mean error over {', '.join(VALIDATION)}.",
        f"Words: {' '.join(words)}; seeds {list(tuning.seeds)}",
        f"Data: {', '.join(f'{key} {value}' for key, value in done.data.items())}",
        f"Versions: {', '.join(f'{name} {version(name)}' for name in PACKAGES)}",
        "Grid, with errors in %:",
        *(
            f"  {' '.join(_words(tuning.candidates[k]))}: {done.error_of(k)}{' (published)' * (k == 0)}"
            for k in done.order
        ),
    ]
    comment = "\n".join(f"# {fact}" for fact in facts)
    return f"# @package _global_\n{comment}\n{OmegaConf.to_yaml(chosen)}"


def write_tuned(done: Tuned, output: Path | None = None) -> str:
    """Write the best values.

    Args:
        done: The grid's results.
        output: The file; by default <dataset>_<method>.yaml here.

    Returns:
        Where they are and how to use them.

    Raises:
        ConfigError: If all runs failed; nothing is written then.
        WriteError: If the disk does not take the file.
    """
    tuning, text = done.tuning, tuned_yaml(done)
    name = f"{tuning.dataset}_{tuning.method}.yaml"
    path = output or Path(name)
    with writing(path):
        path.write_text(text, encoding="utf-8")
    place = config_folder() / "tuned" / tuning.dataset / f"{tuning.method}.yaml"
    return (
        f"{path} holds the best values: copied to {place} they apply to every run of {tuning.method} on "
        f"{tuning.dataset}; for a single run, add {' '.join(_words(tuning.candidates[done.best]))}"
    )
