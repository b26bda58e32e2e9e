"""Runs a table or figure of the paper: its cells, the runs that they need, and the results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from tta_bench.config.compose import Composed, build, compose_launch, compose_runs, plain, require
from tta_bench.config.launch import ONE_BY_ONE, Launch
from tta_bench.config.registry import SEGMENTATION, register_all
from tta_bench.config.request import read_request
from tta_bench.config.validate import MISSING
from tta_bench.config.words import ConfigError, Override, Words, value_of, word_for
from tta_bench.experiments.jobs import run_jobs, run_shard
from tta_bench.paper.measures import MEASURES
from tta_bench.paper.tables import PaperColumn, PaperRow, PaperTable, load_table
from tta_bench.report.intervals import Spread, spread
from tta_bench.report.runs import RunRecord

RunWords = tuple[Override, ...]


@dataclass(frozen=True)
class TablePlan:
    """A table with the user's overrides.

    Attributes:
        table: The table, with the requested rows and seeds.
        common: The user's overrides for all runs.
        own: The user's overrides for the rows of a method, by its name.
        launch: How the runs are started.
    """

    table: PaperTable
    common: RunWords = ()
    own: Mapping[str, RunWords] = field(default_factory=dict)
    launch: Launch = ONE_BY_ONE

    @cached_property
    def dataset(self) -> str:
        """The user's data set, or the table's own."""
        return str(value_of(self.common, "dataset", self.table.dataset))

    def runs(self, row: PaperRow, column: PaperColumn) -> list[RunWords]:
        """The overrides of every run of a cell."""
        alternatives: list[RunWords] = [(word,) for word in column.over] or [()]
        return [
            self._words(row, (*row.words, *column.words, *alternative, word_for("seed", seed)))
            for seed in self.table.seeds
            for alternative in alternatives
        ]

    def _words(self, row: PaperRow, words: RunWords) -> RunWords:
        paper_model = (word_for("model", self.table.model),) if self.dataset == self.table.dataset else ()
        own = (word for name, extra in self.own.items() if _reaches(name, row) for word in extra)
        on = word_for("dataset", self.dataset)
        # The later of two overrides of a key counts.
        return tuple({w.key: w for w in (on, *paper_model, *self.common, *self.table.words, *words, *own)}.values())

    def cells(self) -> Iterator[tuple[PaperRow, PaperColumn]]:
        """Every cell, row by row."""
        return ((row, column) for row in self.table.rows for column in self.table.columns)

    def reference(self, row: PaperRow, column: PaperColumn) -> PaperRow | None:
        """The row to which a cell's measure is relative."""
        method = MEASURES[self.table.measure_of(row, column)].reference
        return next((other for other in self.table.rows if other.method == method), None)

    def composed(self) -> dict[RunWords, Composed]:
        """The configuration of every run that the cells need.

        Raises:
            ConfigError: If an override is wrong.
        """
        runs = list(dict.fromkeys(words for cell in self.cells() for words in self.runs(*cell)))
        return dict(zip(runs, compose_runs(runs), strict=True))


def make_plan(name: str, words: Words = ()) -> TablePlan:
    """Read a table name and overrides such as ``dataset=shapes_c seeds=[0,1] methods=[source,tent] tent.lr=0.01``.

    ``<method>.<key>=`` applies to the rows of this method and of its configurations, such as dpcore_exp1 of dpcore;
    ``<method>.dataset.<key>=`` and the like set other keys only for these rows.

    Raises:
        ConfigError: If an override is unknown, sets a key that the table itself sets, or names data for another task.
        ValueError: If the table is unknown.
    """
    register_all()
    table = load_table(name)
    rows = table.rows
    launch, words = compose_launch(words)
    request = read_request(words, lambda first: any(_reaches(first, row) for row in rows), command=name)
    if request.seeds is not None:
        table = replace(table, seeds=request.seeds)
    if request.methods is not None:
        table = replace(table, rows=_rows(table, request.methods))
    _refuse_fixed(table, [*request.common, *itertools.chain(*request.own.values())])
    plan = TablePlan(table, request.common, request.own, launch)
    _refuse_another_task(plan)
    return plan


def _refuse_another_task(plan: TablePlan) -> None:
    of = "images", "pixels"
    asked, given = (dataset in SEGMENTATION for dataset in (plan.table.dataset, plan.dataset))
    if asked != given:
        raise ConfigError(
            f"{plan.table.name} needs classes of {of[asked]}, but {plan.dataset} has classes of {of[given]}: "
            f"use for example dataset={plan.table.substitute}"
        )


def _rows(table: PaperTable, methods: Sequence[str]) -> tuple[PaperRow, ...]:
    there = [row.method for row in table.rows]
    for method in methods:
        if method not in there:
            raise ConfigError(
                f"{table.name} has no row for {method}; its methods are: {', '.join(dict.fromkeys(there))}"
            )
    return tuple(row for row in table.rows if row.method in methods)


def _refuse_fixed(table: PaperTable, words: Sequence[Override]) -> None:
    """Reject overrides of keys that the table sets, except for values that only the user knows (``???``)."""
    lists = [row.words for row in table.rows] + [(*column.words, *column.over) for column in table.columns]
    fixed = {word.key: word.value for word in (*table.words, *itertools.chain(*lists))}
    for word in words:
        if fixed.get(word.key, MISSING) != MISSING:
            raise ConfigError(f"{word}: {table.name} sets {word.key} itself")


def _reaches(name: str, row: PaperRow) -> bool:
    return row.method == name or row.method.startswith(f"{name}_")


@dataclass(frozen=True)
class PaperCell:
    """Content of a cell.

    Attributes:
        ours: Our number over all its runs; None if they do not have it.
        paper: The paper's number.
        failed: Why one of its runs failed.
    """

    ours: Spread | None
    paper: float | None
    failed: str | None = None

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper


@dataclass(frozen=True)
class Reproduction:
    """A table that has been run.

    Attributes:
        plan: The table and its runs.
        results: The content of ``result.json`` of every run.
        dataset: Name of the data set that was used.
        folder: Folder for its reports.
    """

    plan: TablePlan
    results: Mapping[RunWords, Mapping[str, Any]]
    dataset: str
    folder: Path

    @property
    def is_substitute(self) -> bool:
        """Whether the data are not those of the paper's table."""
        return self.dataset != self.plan.table.dataset

    @cached_property
    def columns(self) -> list[PaperColumn]:
        """The columns, without domains that the data set lacks."""
        there = {name for result in self.results.values() for name in result.get("domains", ())}
        return [column for column in self.plan.table.columns if column.domain is None or column.domain in there]

    @cached_property
    def cells(self) -> dict[tuple[str, str], PaperCell]:
        """The cells, by names of row and column."""
        return {
            (row.name, column.name): self._cell(row, column) for row in self.plan.table.rows for column in self.columns
        }

    @property
    def failures(self) -> dict[str, str]:
        """Reasons of failed runs, by their overrides."""
        return {
            " ".join(map(str, words)): str(r["error"]) for words, r in self.results.items() if r["status"] != "done"
        }

    def form(self, row: PaperRow, column: PaperColumn, x: float) -> str:
        """Format a number for a cell."""
        return MEASURES[self.plan.table.measure_of(row, column)].form(x)

    def run(self, row: PaperRow, column: PaperColumn) -> RunRecord:
        """The first run of a cell."""
        return RunRecord(dict(self.results[self.plan.runs(row, column)[0]]))

    def _cell(self, row: PaperRow, column: PaperColumn) -> PaperCell:
        paper, runs = row.paper.get(column.name), self.plan.runs(row, column)
        failed = [str(self.results[words]["error"]) for words in runs if self.results[words]["status"] != "done"]
        if failed:
            return PaperCell(None, paper, failed[0])
        measure, reference = MEASURES[self.plan.table.measure_of(row, column)], self.plan.reference(row, column)
        bases = map(self._reference, self.plan.runs(reference, column)) if reference else [None] * len(runs)
        values = [
            measure.value(RunRecord(dict(self.results[words])), column.domain, base)
            for words, base in zip(runs, bases, strict=True)
        ]
        found = spread([x for x in values if x is not None]) if None not in values else None
        if column.statistic == "std":
            found = None if found is None or found.std is None else Spread(found.std, None, found.n)
        return PaperCell(found, paper)

    def _reference(self, words: RunWords) -> RunRecord | None:
        result = dict(self.results[words])
        return RunRecord(result) if result["status"] == "done" else None


def reproduce(plan: TablePlan, console: Console) -> Reproduction | None:
    """Run everything that is missing.

    Returns:
        The table; None if only a shard of its runs was requested.

    Raises:
        ConfigError: If an override is wrong; this is checked before the first run.
        ValueError: If the data or the model is wrong.
        FileNotFoundError: If a file is missing.
    """
    composed = plan.composed()
    _require(plan, next(iter(composed.values())))
    needed = distinct(composed.values())
    if plan.launch.shard is not None:
        run_shard(list(needed.values()), console, plan.launch.shard, plan.launch)
        return None
    done = dict(zip(needed, run_jobs(list(needed.values()), console, plan.launch), strict=True))
    job = next(iter(composed.values()))
    return Reproduction(
        plan,
        {words: done[_same(job)] for words, job in composed.items()},
        _shown(job),
        Path(str(job.config.output)).expanduser() / job.choices["dataset"] / "reproduce",
    )


def _require(plan: TablePlan, job: Composed) -> None:
    try:
        require(job.config)
    except ConfigError as error:
        at_hand = f"{plan.table.name} dataset={plan.table.substitute}"
        raise ConfigError(f"{error}; or use embedded data, as in {at_hand}") from error


def distinct(jobs: Iterable[Composed]) -> dict[str, Composed]:
    """Return each run once: cells with the same configuration share it."""
    return {_same(job): job for job in jobs}


def _same(job: Composed) -> str:
    return json.dumps([job.choices, plain(job.config)], sort_keys=True)


def _shown(job: Composed) -> str:
    """Name of the data set, or for a packed data set, that of the original."""
    name = job.choices["dataset"]
    return build(job.config.dataset).name if name == "packed" else name
