"""Upper bounds of the costs of runs, from their configurations alone, to start long runs first and balance shards.

No data or model is opened, so every machine computes the same costs and therefore the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra_zen import get_target
from rich.table import Table

from tta_bench.config.compose import Composed, plain
from tta_bench.config.launch import Shard
from tta_bench.config.words import Override
from tta_bench.methods import METHODS, TTAMethod

Values = Mapping[str, Any]  # a method's keyword arguments
Passes = tuple[float, float]  # forward and backward, per sample

UNKNOWN: Passes = (2, 1)  # for a user's method
VIEWS = 32  # for CoTTA if num_views is null
PASSES: dict[str, Callable[[Values], Passes]] = {
    "source": lambda v: (1, 0),
    "lame": lambda v: (1, 0),
    "bn_adapt": lambda v: (1, 0),
    "tent": lambda v: (v["steps"], v["steps"]),
    "rpl": lambda v: (1, 1),
    "pseudo_label": lambda v: (1, 1),
    "pseudo_label_lame": lambda v: (2, 1),
    "eta": lambda v: (1, 1),
    "eata": lambda v: (1, 1),
    "rdumb": lambda v: (1, 1),
    "sar": lambda v: (2, 2),
    "deyo": lambda v: (2, 1),
    "roid": lambda v: (2, 2),
    "cmf": lambda v: (2, 2),
    "vdp": lambda v: (2, 1),
    "ecotta": lambda v: (2 if v["mode"] == "two_phase" else 1, 1),
    "santa": lambda v: (3, 2),
    "bdg": lambda v: (4, 2),
    "dept": lambda v: (4, 1),
    "note_pbrs": lambda v: (1 + _memory(v), _memory(v)),
    "rotta": lambda v: (1 + 2 * _memory(v), _memory(v)),
    "petta": lambda v: (5, 2) if v["loss"] == "symmetric" else (4, 1),
    "cotta": lambda v: (3 + (VIEWS if v["num_views"] is None else v["num_views"]), 1),
    "vida": lambda v: (2 + v["num_views"], 1),
    "cmae": lambda v: (2 + v["num_views"], 1),
    "memo": lambda v: (1 + v["num_views"], v["num_views"]),
    "foa": lambda v: (1 + v["population"], 0),
    "dpcore": lambda v: (2 + v["steps_new"], v["steps_new"]),
    "dpcore_b": lambda v: (3 + v["steps_new"], v["steps_new"]),
    "dpcore_simplified": lambda v: (1 + v["steps_new"], v["steps_new"]),
}
"""Forward and backward passes per sample if every image is selected, uncertain or from a new domain."""


def common_words(jobs: Sequence[Composed]) -> set[Override]:
    """The overrides that all of several jobs share."""
    return set.intersection(*(set(job.words) for job in jobs)) if len(jobs) > 1 else set()


def _memory(values: Values) -> float:
    """Number of times that each image is learned from, for a full memory and batches of ``update_every``."""
    return values["memory_size"] / values["update_every"]


def passes(job: Composed) -> Passes:
    """Maximum of forward and backward passes per image of the stream; for a user's class, those of its base class."""
    values, target = plain(job.config.method), get_target(job.config.method)
    bases = target.__mro__ if isinstance(target, type) else ()
    names = {cls: name for name, cls in METHODS.items()}
    for cls in bases:
        if cls in names and cls is not TTAMethod:
            return PASSES[names[cls]](values)
    return UNKNOWN


def cost(job: Composed) -> float:
    """Relative duration: a backward pass takes about as long as two forward passes."""
    forward, backward = passes(job)
    return (forward + 2 * backward) * int(job.config.setting.rounds) * (job.config.dataset.get("num_images") or 1)


def long_first(jobs: Sequence[Composed]) -> list[Composed]:
    """Sort jobs by decreasing cost, keeping the order of equal costs."""
    return sorted(jobs, key=cost, reverse=True)


def share(jobs: Sequence[Composed], shard: Shard | None) -> list[Composed]:
    """The jobs of a shard, which take about as long as those of any other; without a shard, all jobs unchanged."""
    return list(jobs) if shard is None else shard.of(long_first(jobs))


def jobs_table(jobs: Sequence[Composed]) -> Table:
    """Table of the jobs with their estimated costs, without the overrides that they all share."""
    jobs, shared = long_first(jobs), common_words(jobs)
    table = Table(title=f"{len(jobs)} runs, the longest first")
    for name in ("run", "forward", "backward", "share of the time"):
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    total = sum(map(cost, jobs)) or 1.0
    for job in jobs:
        forward, backward = passes(job)
        words = " ".join(str(word) for word in job.words if word not in shared)
        table.add_row(words, f"{forward:g}", f"{backward:g}", f"{100 * cost(job) / total:.1f} %")
    table.caption = "Forward and backward passes per image, at most; methods that select images take fewer."
    return table
