"""HTML page of all runs: a single file that needs neither a server nor a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tta_bench.report.groups import UNFINISHED, Entry, Group
from tta_bench.report.intervals import spread
from tta_bench.report.looks import Look, looks_of
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
from tta_bench.report.page_figures import cost_figure, stream_figures
from tta_bench.report.protocol import differences, protocol_card, telling
from tta_bench.report.runs import RunRecord
from tta_bench.report.svg import shorten
from tta_bench.report.table import UNKNOWN
from tta_bench.results.visits import MOST_VISITS

FILES = Path(__file__).parent / "page_files"
ABOUT = {
    "needs_source": ("Source data", "Data of the source domain that it uses before the stream; no method sees labels "
                     "or domain names of the stream"),
    "prediction_timing": ("Prediction", "Updates on a batch that precede its prediction: none (before update), all but "
                          "the last (last forward) or all (after update)"),
    "paper": ("Paper", "Publication of the method"),
}  # fmt: skip


@dataclass(frozen=True)
class PageCell:
    """A cell: its text, its value for sorting, and its rank in the column."""

    text: str
    value: float | str | None = None
    rank: int | None = None
    more: str = ""


@dataclass(frozen=True)
class PageColumn:
    """A column with its cells; ``part`` is shown or hidden as a whole, and ``first`` is the first sort direction."""

    title: str
    part: str
    heading: str
    cells: dict[Entry, PageCell]
    about: str = ""
    unit: str = ""
    first: str = "ascending"


@dataclass(frozen=True)
class PageRow:
    """A row of the table."""

    entry: Entry
    look: Look
    need: str
    notes: list[str]


@dataclass(frozen=True)
class Bars:
    """A panel of bars: a domain, and (row, mean, standard deviation) of each displayed entry."""

    domain: str
    bars: list[tuple[PageRow, float, float | None]]


@dataclass(frozen=True)
class Section:
    """A group on the page; ``telling`` says how it differs from others of the same name."""

    id: str
    group: Group
    telling: str
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
    """Render the page.

    Args:
        groups: The groups.
        place: Folder of the page, to which links to the runs' files are relative; None omits links.
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
        counts={status: sum(run.result["status"] == status for run in runs) for status in ("done", *UNFINISHED)},
        needs=sorted({str(run.result.get("needs_source", "")) for run in runs} - {""}),
        total=len(runs),
        scores=sorted({group.segments for group in groups}),
    )


def _section(name: str, group: Group, looks: dict[Entry, Look], place: Path | None) -> Section:
    rows = [
        PageRow(entry, looks[entry], str(entry.runs[0].result.get("needs_source", "")), _notes(group, entry))
        for entry in best_first(group)
    ]
    return Section(
        name, group, telling(group), _columns(group), rows, _bars(group, rows), cost_figure(group, looks),
        _streams(group, looks), _returns(rows), protocol_card(group),
        [_run(run, group, looks, place) for run in group.runs],
    )  # fmt: skip


def _columns(group: Group) -> list[PageColumn]:
    score = "Mean IoU" if group.segments else "Error"
    return [
        _measured(group, mean_measure(group), "error", score),
        _gain(group, "error", score),
        *(_measured(group, m, "domains", m.heading or f"{score} by domain") for m in column_measures(group)),
        *(_measured(group, m, "cost", "Cost") for m in COST if m.is_known([group])),
        *(_measured(group, m, "more", "Further measures") for m in extra_measures(group) if m.is_known([group])),
        *(_fact(group, key, title, about) for key, (title, about) in ABOUT.items()),
    ]


def _measured(group: Group, measure: Measure, part: str, heading: str) -> PageColumn:
    ranks, cells = measure.ranks(group), {}
    for entry in group.entries:
        cells[entry] = PageCell(UNKNOWN)
        if found := entry.spread(measure.value):
            std = f"± {found.std:,.{measure.digits}f}" if found.std is not None and part != "cost" else ""
            cells[entry] = PageCell(f"{found.mean:,.{measure.digits}f}", found.mean, ranks.get(entry), std)
    first = "descending" if measure.higher else "ascending"
    return PageColumn(measure.title, part, heading, cells, measure.about, measure.unit, first)


def _gain(group: Group, part: str, heading: str) -> PageColumn:
    cells = {}
    for entry in group.entries:
        cells[entry] = PageCell(UNKNOWN)
        if gain := group.gain(entry):
            interval = "[{:+z.1f}, {:+z.1f}]".format(*gain.interval) if gain.interval else ""
            cells[entry] = PageCell(f"{gain.mean:+z.1f}", gain.mean, None, interval)
    minus = f"Own minus that of {group.baseline}" if group.segments else f"Error of {group.baseline} minus its own"
    about = f"{minus}, paired by stream; in brackets the 95 % confidence interval"
    return PageColumn(f"Gain over {group.baseline}", part, heading, cells, about, "points", "descending")


def _fact(group: Group, key: str, title: str, about: str) -> PageColumn:
    texts = {e: str(e.runs[0].result.get(key) or UNKNOWN).replace("_", " ") for e in group.entries}
    return PageColumn(title, "about", "About", {e: PageCell(text, text) for e, text in texts.items()}, about)


def _notes(group: Group, entry: Entry) -> list[str]:
    notes = list(entry.notes)
    if entry.is_sound and not group.is_ranked(entry):
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
    """Error at the k-th visit, averaged over the domains visited that often; empty if no domain recurs."""
    found = []
    for row in rows:
        by_visit: dict[int, list[float]] = {}
        for run in row.entry.counted.values():
            numbers = sorted({visit.number for visit in run.trace.visits})
            for k in numbers[:MOST_VISITS]:
                errors = spread([v.error for v in run.trace.visits if v.number == k and v.error is not None])
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
    score = mean_measure(group).value(run) if run.done else None
    return {
        "label": entry.label,
        "look": looks[entry],
        "stream": str(run.stream),
        "status": status,
        "kind": run.result["status"],
        "message": str(run.result.get("error") or ""),
        "disagreement": run.disagreement,
        "score": PageCell(UNKNOWN if score is None else f"{score:.1f}", score),
        "seconds": PageCell(UNKNOWN if (s := run.number("seconds")) is None else f"{s:.1f}", s),
        "started": str(run.result.get("started", ""))[:16].replace("T", " "),
        "device": str(run.result.get("device", "")),
        "links": [(name, _link(run.folder / name, place)) for name in run.files if run.folder and place],
    }


def _link(path: Path, place: Path) -> str:
    return quote(Path(os.path.relpath(path.resolve(), place.resolve())).as_posix())
