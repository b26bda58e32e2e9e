"""Run several methods on the same streams and compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tta_bench.config.compose import Composed, compose_launch, compose_runs, options, plain
from tta_bench.config.launch import ONE_BY_ONE, Launch
from tta_bench.config.registry import SEGMENTATION, register_all
from tta_bench.config.request import read_request
from tta_bench.config.user_folder import user_folder
from tta_bench.config.words import ConfigError, Override, Words, value_of, word_for
from tta_bench.console import say
from tta_bench.experiments.costs import share
from tta_bench.experiments.jobs import run_jobs
from tta_bench.loggers.wandb_compare import compare_bench
from tta_bench.methods import METHODS
from tta_bench.results.run_folder import write_result

DEFAULT_METHODS = ("source", "tent", "dpcore")
# Methods that methods=all leaves out; each still runs if it is named.
NOT_IN_ALL = {
    "bn_adapt": "needs batch norm",
    "dpcore_b": "is for streams of single images",
    "dpcore_simplified": "is only for the paper's analysis",
    "memo": "is episodic and passes every image forward 65 times",
}


@dataclass(frozen=True)
class BenchPlan:
    """What a bench runs: every method with every seed, with common and method-specific words, and how."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    common: tuple[Override, ...]
    own: Mapping[str, tuple[Override, ...]]
    launch: Launch = ONE_BY_ONE

    def words(self, method: str, seed: int) -> tuple[Override, ...]:
        """The words that compose one run."""
        own = self.own.get(_short(method), ())
        return (word_for("method", method), *self.common, *own, word_for("seed", seed))

    def compose(self) -> list[Composed]:
        """The configuration of every run, all methods with the first seed first.

        Raises:
            ConfigError: If a word is wrong.
        """
        return compose_runs(self.words(method, seed) for seed in self.seeds for method in self.methods)

    def jobs(self) -> list[Composed]:
        """The runs of the shard; without one, all of them.

        Raises:
            ConfigError: If a word is wrong.
        """
        return share(self.compose(), self.launch.shard)


def make_plan(words: Words) -> BenchPlan:
    """Read ``methods=[source,tent]`` or ``methods=all``, ``seeds=[0,1]``, ``tent.lr=0.01`` and words for all runs.

    Raises:
        ConfigError: If a word is none of these.
    """
    register_all()
    launch, overrides = compose_launch(words)
    asked = value_of(overrides, "methods") or ()
    named = [_short(str(name)) for name in (asked if isinstance(asked, list) else [asked])]
    known = {*options("method", user_folder(overrides)), *named}
    request = read_request(overrides, known.__contains__, command="bench")
    methods = request.methods or DEFAULT_METHODS
    if methods == ("all",):
        methods = _all_methods(value_of(overrides, "dataset"))
    for name, (first, *_) in request.own.items():
        if name not in map(_short, methods):
            raise ConfigError(
                f"{name}.{first.key.removeprefix('method.')}: {name} is not among methods=[{','.join(methods)}]"
            )
    for word in request.common:
        if word.key.startswith("method."):
            example = f"{_short(methods[-1])}.{word.key.removeprefix('method.')}={word.text}"
            raise ConfigError(f"{word}: bench runs several methods; name the one it is for, for example {example}")
    return BenchPlan(methods, request.seeds or (0,), request.common, request.own, launch)


def _all_methods(dataset: str | None) -> tuple[str, ...]:
    """The methods that ``methods=all`` selects on a data set."""
    able = {name for name, cls in METHODS.items() if cls.segments or dataset not in SEGMENTATION}
    return tuple(name for name in METHODS if name in able and name not in NOT_IN_ALL)


def _short(method: str) -> str:
    """The name under which ``pkg.Class`` is known on the command line and in results: ``Class``."""
    return method.rpartition(".")[2]


def tables_apart(jobs: Sequence[Composed]) -> str | None:
    """The differences in data, stream, model or precision that make runs incomparable, in words; None if none."""
    seen: dict[str, dict[str, list[str]]] = {}
    for job in jobs:
        for group in ("dataset", "setting", "model", "trainer"):
            for key, value in plain(job.config[group]).items():
                if key not in ("order", "devices", "accelerator"):
                    methods = seen.setdefault(f"{group}.{key}", {}).setdefault(str(value), [])
                    methods.append(job.choices["method"])
    differ = {key: values for key, values in seen.items() if len(values) > 1}
    told = [
        f"{key} is " + " and ".join(f"{value} for {', '.join(dict.fromkeys(names))}" for value, names in values.items())
        for key, values in differ.items()
    ]
    return f"these runs cannot be compared in one table: {'; '.join(told)}" if told else None


def bench(words: Words, console: Console) -> list[dict[str, Any]]:
    """Run the plan; a failed run never stops the others.

    Returns:
        The results, in the order of the runs. If Source ran on the same stream, the others include its error.

    Raises:
        ConfigError: If the words are wrong; in that case nothing has run.
    """
    plan = make_plan(words)
    jobs = plan.jobs()
    if not jobs:
        say(console, f"shard {plan.launch.shard} holds no run")
        return []
    if told := tables_apart(jobs):
        say(console, told, "yellow")
    results = run_jobs(jobs, console, plan.launch)
    results = [with_source_error(result, results) for result in results]
    compare_bench(results, jobs[0].config.logger.get("wandb"), console)
    return results


def with_source_error(result: dict[str, Any], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result with the score of the unadapted source model on the same stream, also in its file.

    Args:
        result: The result of a run.
        results: Results of the whole bench; a finished run of ``source`` with the same stream, weights, data and
            preprocessing is the reference. Without one the result is returned unchanged.
    """
    same = ("stream_sha256", "weights_sha256", "data", "preprocess")
    for source in results:
        usable = source["method"] == "source" and source["status"] == "done" and "folder" in result
        if usable and all(source[key] == result[key] for key in same):
            known = {f"source_{key}": source[key] for key in ("mean_error", "mean_iou") if key in source}
            if any(result.get(key) != value for key, value in known.items()):
                folder = result["folder"]
                result = {**write_result(Path(folder), {**result, **known}), "folder": folder}
    return result
