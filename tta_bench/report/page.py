"""One HTML page of all runs: a single file that needs neither a server nor a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tta_bench.report.figures import Look, cost_figure, looks_of, stream_figures
from tta_bench.report.groups import Entry, Group
from tta_bench.report.intervals import spread
from tta_bench.report.measures import (
    COST,
    Measure,
    best_first,
    column_measures,
    domain_measures,
    extra_measures,
    has_collapsed,
    mean_measure,
)
from tta_bench.report.protocol import differences, protocol_card
from tta_bench.report.runs import RunRecord
from tta_bench.report.svg import shorten
from tta_bench.report.table import UNKNOWN
from tta_bench.report.visits import MOST_VISITS

FILES = Path(__file__).parent / "page_files"
ABOUT = {
    "needs_source": ("Sees of the source", "What it gets of the source domain before the stream; no method sees labels "
                     "or domain names of the stream"),
    "prediction_timing": ("Prediction", "Which of a batch's own updates its prediction has seen: none (before update), "
                          "all but the last (last forward) or all (after update)"),
    "paper": ("Paper", "Where the method was published"),
}  # fmt: skip


@dataclass(frozen=True)
class PageColumn:
    """A column of the table; it is shown and hidden with its ``part``, and ``first`` sorted in that direction."""

    title: str
    part: str
    about: str = ""
    unit: str = ""
    ranked: bool = False
    first: str = "ascending"
    heading: str = ""


@dataclass(frozen=True)
class PageCell:
    """A cell: what it shows, what it is sorted by, and its rank in its column."""

    text: str
    value: float | str | None = None
    rank: int = 0
    more: str = ""


@dataclass(frozen=True)
class PageRow:
    """An entry of the table."""

    entry: Entry
    look: Look
    ranked: bool
    need: str
    notes: list[str]
    cells: list[PageCell]


@dataclass(frozen=True)
class Bars:
    """A panel of bars: a domain, and (row, mean, standard deviation) of each entry shown."""

    domain: str
    bars: list[tuple[PageRow, float, float | None]]


@dataclass(frozen=True)
class Section:
    """A group as the page shows it."""

    id: str
    group: Group
    columns: list[PageColumn]
    rows: list[PageRow]
    bars: list[Bars]
    cost: str
    streams: list[tuple[str, str, list[tuple[str, str]]]]
    returns: list[tuple[PageRow, list[PageCell]]]
    card: list[tuple[str, list[str]]]
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def headings(self) -> list[tuple[str, str, int]]:
        """(Heading, part, number of columns) above the columns."""
        parts = groupby(self.columns, key=lambda column: (column.heading, column.part))
        return [(heading, part, len(list(columns))) for (heading, part), columns in parts]


def html_report(groups: Sequence[Group], place: Path | None) -> str:
    """The page.

    Args:
        groups: The groups.
        place: Folder that the page will lie in; links to the runs' files are relative to it. None makes no links.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    looks = looks_of(groups)
    env = Environment(
        loader=FileSystemLoader(FILES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters["short"] = lambda name: shorten(name, 17)
    runs = [run for group in groups for run in group.runs]
    return env.get_template("page.html.j2").render(
        sections=[_section(f"g{k}", group, looks, place) for k, group in enumerate(groups, start=1)],
        differences=differences(groups),
        counts={
            status: sum(run.result["status"] == status for run in runs) for status in ("done", "failed", "running")
        },
        needs=sorted({str(run.result.get("needs_source", "")) for run in runs} - {""}),
        total=len(runs),
        scores=sorted({group.segments for group in groups}),
    )


def _section(name: str, group: Group, looks: dict[Entry, Look], place: Path | None) -> Section:
    score = "Mean IoU" if group.segments else "Error"
    measures = [
        (mean_measure(group), "error", score),
        *((m, "domains", m.heading or f"{score} by domain") for m in column_measures(group)),
        *((m, "cost", "Cost") for m in COST if m.is_known([group])),
        *((m, "more", "Further measures") for m in extra_measures(group) if m.is_known([group])),
    ]
    columns = [
        PageColumn(m.title, part, m.about, m.unit, m.ranked, "descending" if m.higher else "ascending", heading)
        for m, part, heading in measures
    ]
    minus = f"Own minus that of {group.baseline}" if group.segments else f"Error of {group.baseline} minus its own"
    about = f"{minus}, paired by stream; in brackets the 95 % confidence interval"
    columns.insert(1, PageColumn(f"Gain over {group.baseline}", "error", about, "points", False, "descending", score))
    columns += [PageColumn(title, "about", text, heading="About") for title, text in ABOUT.values()]
    ranks = [m.ranks(group) for m, *_ in measures]
    rows = []
    for entry in best_first(group):
        cells = [
            _cell(entry, m, rank.get(entry, 0), with_std=part != "cost")
            for (m, part, _), rank in zip(measures, ranks, strict=True)
        ]
        cells.insert(1, _gain(group, entry))
        facts = entry.runs[0].result
        cells += [PageCell(text, text) for text in (str(facts.get(key) or UNKNOWN).replace("_", " ") for key in ABOUT)]
        need = str(facts.get("needs_source", ""))
        rows.append(PageRow(entry, looks[entry], group.is_ranked(entry), need, _notes(group, entry), cells))
    return Section(
        name, group, columns, rows, _bars(group, rows), cost_figure(group, looks), _streams(group, looks),
        _returns(rows), protocol_card(group), [_run(run, group, looks, place) for run in group.runs],
    )  # fmt: skip


def _cell(entry: Entry, measure: Measure, rank: int, *, with_std: bool) -> PageCell:
    found = entry.spread(measure.value)
    if found is None:
        return PageCell(UNKNOWN)
    text = f"{found.mean:,.{measure.digits}f}"
    return PageCell(
        text, found.mean, rank, f"± {found.std:,.{measure.digits}f}" if with_std and found.std is not None else ""
    )


def _gain(group: Group, entry: Entry) -> PageCell:
    gain = group.gain(entry)
    if gain is None:
        return PageCell(UNKNOWN)
    return PageCell(
        f"{gain.mean:+.1f}", gain.mean, 0, "[{:+.1f}, {:+.1f}]".format(*gain.interval) if gain.interval else ""
    )


def _notes(group: Group, entry: Entry) -> list[str]:
    notes = list(entry.notes)
    if entry.counted and not group.is_ranked(entry):
        notes.append(f"not ranked: {len(entry.counted)} streams, others {len(group.ranked_streams)}"
                     if len(entry.counted) != len(group.ranked_streams) else "not ranked: other streams")  # fmt: skip
    if has_collapsed(group, entry):
        notes.append("collapsed")
    return notes


def _bars(group: Group, rows: Sequence[PageRow]) -> list[Bars]:
    shown = [row for row in rows if row.look.stands_out]
    panels = []
    for measure in domain_measures(group):
        found = [(row, row.entry.spread(measure.value)) for row in shown]
        panels.append(Bars(measure.about, [(row, s.mean, s.std) for row, s in found if s is not None]))
    return panels


def _streams(group: Group, looks: dict[Entry, Look]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    found = []
    for stream in group.streams:
        sha = next(str(run.result.get("stream_sha256", "")) for run in group.runs if run.stream == stream)
        if charts := stream_figures(group, stream, looks):
            found.append((str(stream), sha[:12], charts))
    return found


def _returns(rows: Sequence[PageRow]) -> list[tuple[PageRow, list[PageCell]]]:
    """Error at the k-th visit, mean over the domains visited that often; empty if no domain comes back."""
    found = []
    for row in rows:
        by_visit: dict[int, list[float]] = {}
        for run in row.entry.counted.values():
            numbers = sorted({visit.number for visit in run.trace.visits})
            for k in numbers[:MOST_VISITS]:
                errors = spread([visit.error for visit in run.trace.visits if visit.number == k])
                by_visit.setdefault(k, []).extend([errors.mean] if errors else [])
        means = [s for k in sorted(by_visit) if (s := spread(by_visit[k]))]
        if means:
            found.append((row, [PageCell(f"{s.mean:.1f}", s.mean) for s in means]))
    return found if max((len(cells) for _, cells in found), default=0) > 1 else []


def _run(run: RunRecord, group: Group, looks: dict[Entry, Look], place: Path | None) -> dict[str, Any]:
    entry = next(entry for entry in group.entries if run in entry.runs)
    status, steps = str(run.result["status"]), run.trace.steps
    if status != "done":
        status += f" after {steps} of {run.planned_steps or '?'} batches"
    elif run not in entry.counted.values():
        status += ", repeated: not counted"
    if "batches.csv" in run.files and not steps:
        status += "; its batches cannot be read"
    score = mean_measure(group).value(run) if run.done else None
    return {
        "label": entry.label,
        "look": looks[entry],
        "stream": str(run.stream),
        "status": status,
        "kind": run.result["status"],
        "message": str(run.result.get("error") or ""),
        "score": PageCell(UNKNOWN if score is None else f"{score:.1f}", score),
        "seconds": PageCell(UNKNOWN if (s := run.number("seconds")) is None else f"{s:.1f}", s),
        "started": str(run.result.get("started", ""))[:16].replace("T", " "),
        "device": str(run.result.get("device", "")),
        "links": [(name, _link(run.folder / name, place)) for name in run.files if run.folder and place],
    }


def _link(path: Path, place: Path) -> str:
    return quote(Path(os.path.relpath(path.resolve(), place.resolve())).as_posix())
