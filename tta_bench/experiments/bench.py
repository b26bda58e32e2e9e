"""Many runs on the same streams, then the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tta_bench.config.compose import compose_run, options
from tta_bench.config.registry import SEGMENTATION, register_all
from tta_bench.config.words import ConfigError, as_list, dataset_of, seeds_of
from tta_bench.experiments.jobs import run_jobs
from tta_bench.files import write_json
from tta_bench.loggers.wandb_compare import compare_bench
from tta_bench.methods import METHODS

DEFAULT_METHODS = ("source", "tent", "dpcore")
# What methods=all leaves out; each still runs when it is named.
NOT_IN_ALL = {
    "bn_adapt": "needs batch norm",
    "dpcore_b": "is for streams of single images",
    "dpcore_simplified": "serves the paper's analysis",
    "memo": "is episodic and passes every image forward 65 times",
}


@dataclass
class BenchPlan:
    """What a bench runs: every method with every seed, under common and own overrides."""

    methods: list[str] = field(default_factory=lambda: list(DEFAULT_METHODS))
    seeds: list[int] = field(default_factory=lambda: [0])
    common: list[str] = field(default_factory=list)
    own: dict[str, list[str]] = field(default_factory=dict)

    def overrides(self, method: str, seed: int) -> list[str]:
        """The words that compose one run."""
        return [f"method={method}", *self.common, *self.own.get(_short(method), []), f"seed={seed}"]


def make_plan(words: Sequence[str]) -> BenchPlan:
    """Read ``methods=[source,tent]`` or ``methods=all``, ``seeds=[0,1]``, ``tent.lr=0.01`` and overrides of every run.

    Raises:
        ConfigError: If a word is none of these.
    """
    register_all()
    plan = BenchPlan()
    for word in words:
        key = word.partition("=")[0]
        if key == "methods":
            named = [str(name) for name in as_list(word)]
            plan.methods = _all_methods(dataset_of(words)) if named == ["all"] else named
        elif key == "seeds":
            plan.seeds = seeds_of(word)
    short = [_short(name) for name in plan.methods]
    for word in words:
        key, _, value = word.partition("=")
        first, _, rest = key.partition(".")
        if key in ("methods", "seeds"):
            continue
        if key in ("method", "seed"):
            raise ConfigError(f"bench runs several: write {key}s=[{value}] instead of {word}")
        if first == "method":
            raise ConfigError(
                f"{word}: bench runs several methods, say which one, for example {short[-1]}.{rest}={value}"
            )
        if rest and first in {*options("method"), *short}:
            if first not in short:
                raise ConfigError(f"{word}: {first} is not among methods=[{','.join(plan.methods)}]")
            plan.own.setdefault(first, []).append(f"method.{rest}={value}")
        else:
            plan.common.append(word)
    return plan


def _all_methods(dataset: str | None) -> list[str]:
    """What ``methods=all`` stands for on a data set."""
    able = {name for name, cls in METHODS.items() if cls.segments or dataset not in SEGMENTATION}
    return [name for name in METHODS if name in able and name not in NOT_IN_ALL]


def _short(method: str) -> str:
    """The name under which ``pkg.Class`` is known on the command line and in results: ``Class``."""
    return method.rpartition(".")[2]


def bench(words: Sequence[str], console: Console) -> list[dict[str, Any]]:
    """Run the plan; one failed run never stops the others.

    Returns:
        The results, in the order of the runs. Where Source ran on the same stream, the others know its error.

    Raises:
        ConfigError: If the words are wrong; nothing has run then.
    """
    plan = make_plan(words)
    jobs = [compose_run(plan.overrides(method, seed)) for seed in plan.seeds for method in plan.methods]
    results = run_jobs(jobs, console)
    results = [_with_source_error(result, results) for result in results]
    compare_bench(results, jobs[0].config.logger, console)
    return results


def _with_source_error(result: dict[str, Any], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    same = ("stream_sha256", "weights_sha256", "data", "preprocess")
    for source in results:
        usable = source["method"] == "source" and source["status"] == "done" and "folder" in result
        if usable and all(source[key] == result[key] for key in same):
            folder = Path(result["folder"])
            result = {**result, "source_mean_error": source["mean_error"]}
            if "mean_iou" in source:
                result["source_mean_iou"] = source["mean_iou"]
            write_json(folder / "result.json", {k: v for k, v in result.items() if k != "folder"})
    return result
