"""The tables and figures of DPCore's paper (Zhang et al., ICML 2025): their runs, measures and published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from rich.table import Table

from tta_bench.config.words import Override, read_words, value_of
from tta_bench.report.corruptions import domain_groups
from tta_bench.report.table import UNKNOWN
from tta_bench.streams import STANDARD_ORDER
from tta_bench.suggestions import did_you_mean


@dataclass(frozen=True)
class PaperRow:
    """A row, usually a method.

    Attributes:
        name: Its heading.
        words: Overrides that it adds to a run, including ``method=...``.
        paper: The paper's numbers, by column.
        measure: Measure of its cells if the column has none.
    """

    name: str
    words: tuple[Override, ...]
    paper: Mapping[str, float] = field(default_factory=dict)
    measure: str | None = None

    @property
    def method(self) -> str:
        """The name after ``method=``."""
        return str(value_of(self.words, "method"))


@dataclass(frozen=True)
class PaperColumn:
    """A column: a domain, a setting, a value of a hyper-parameter or another measure.

    Attributes:
        name: Its heading.
        words: Overrides that it adds to a run.
        measure: Measure of its cells.
        domain: Restrict the measure to this domain.
        over: Alternative overrides; a cell is the statistic over the runs of all of them.
        statistic: ``mean`` or ``std``, over these and over seeds.
    """

    name: str
    words: tuple[Override, ...] = ()
    measure: str | None = None
    domain: str | None = None
    over: tuple[Override, ...] = ()
    statistic: Literal["mean", "std"] = "mean"


@dataclass(frozen=True)
class PaperTable:
    """A table or figure; a cell is the run with the overrides of the table, the row and the column.

    Attributes:
        name: Its name on the command line.
        title: Its title.
        place: Its number in the paper.
        dataset: The paper's data set.
        model: The configuration of the paper's source model; other data sets have their own models.
        words: The overrides of all runs.
        seeds: The seeds of every run.
        measure: Measure of the cells if neither column nor row has one.
        rows: The rows.
        columns: The columns.
        draw: ``bars`` per row, a line per row over the columns, or ``curves`` over the batches of a run.
        x: Label of the columns in a line plot.
        note: Remark for the reader.
        gpu_hours: Estimated cost, by number of images per domain.
        substitute: The embedded data set that can replace the paper's.
    """

    name: str
    title: str
    place: str
    dataset: str
    model: str
    words: tuple[Override, ...]
    seeds: tuple[int, ...]
    measure: str
    rows: tuple[PaperRow, ...]
    columns: tuple[PaperColumn, ...]
    draw: Literal["bars", "lines", "curves"]
    x: str
    note: str
    gpu_hours: Mapping[str, float]
    substitute: str

    def measure_of(self, row: PaperRow, column: PaperColumn) -> str:
        """The measure of a cell."""
        return column.measure or row.measure or self.measure

    @property
    def cost(self) -> str:
        """Text with GPU hours by number of images per domain; empty if there is no estimate."""
        return ", ".join(f"{hours:g} ({images})" for images, hours in self.gpu_hours.items())


def paper_folder() -> Path:
    """The folder of the yaml files: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "paper" / "published"
    return inside if inside.is_dir() else package.parent / "benchmarks" / "paper"


def table_names() -> list[str]:
    """The names of all tables and figures."""
    return sorted(path.stem for path in paper_folder().glob("*.yaml"))


def tables_list() -> Table:
    """Table of the names that ``tta-bench reproduce`` takes."""
    table = Table("name", "what it shows", "in the paper", "data set")
    table.add_column("GPU hours, estimated")
    table.columns[0].no_wrap = True
    for name in table_names():
        paper = load_table(name)
        table.add_row(name, paper.title, paper.place, paper.dataset, paper.cost or UNKNOWN)
    return table


def load_table(name: str) -> PaperTable:
    """Read a table.

    Raises:
        ValueError: If the table is unknown.
    """
    names = table_names()
    if name not in names:
        raise ValueError(f"the paper has no table or figure {name!r}{did_you_mean(name, names)}")
    content: Any = OmegaConf.to_container(OmegaConf.load(paper_folder() / f"{name}.yaml"))
    columns = _domain_columns() if content.pop("domains", False) else []
    columns += [_column(str(key), values) for key, values in content.pop("columns").items()]
    rows = tuple(_row(str(key), values, columns) for key, values in content.pop("rows").items())
    content["words"] = read_words(content.get("words", "").split())
    content["seeds"] = tuple(content["seeds"])
    defaults = {"measure": "error", "x": "", "note": "", "gpu_hours": {}, "substitute": "shapes_c"}
    return PaperTable(name=name, rows=rows, columns=tuple(columns), **{**defaults, **content})


def _domain_columns() -> list[PaperColumn]:
    return [
        PaperColumn(short, domain=name) for _, names in domain_groups(STANDARD_ORDER) for name, short in names.items()
    ]


def _column(name: str, values: dict[str, Any]) -> PaperColumn:
    words, over = read_words(values.pop("words", "").split()), values.pop("over", "")
    key, _, alternatives = over.partition("=")
    return PaperColumn(name, words, over=read_words(f"{key}={x}" for x in alternatives.split(",") if x), **values)


def _row(name: str, values: dict[str, Any], columns: list[PaperColumn]) -> PaperRow:
    paper, heads = values.pop("paper", {}), [column.name for column in columns]
    if isinstance(paper, list):
        paper = dict(zip(heads, paper, strict=True))
    known = {str(head): float(x) for head, x in paper.items() if x is not None}
    if unknown := set(known) - set(heads):
        raise ValueError(f"row {name!r} has a number for {min(unknown)!r}, which is not a column")
    return PaperRow(name, read_words(values.pop("words").split()), known, **values)
