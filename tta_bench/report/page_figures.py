"""The figures of a group on the page: its streams, curves over them, and cost against error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tta_bench.report.corruptions import CORRUPTION_GROUPS, domain_groups
from tta_bench.report.groups import Entry, Group
from tta_bench.report.looks import Look
from tta_bench.report.measures import COST, mean_measure
from tta_bench.report.runs import RunRecord, StreamId
from tta_bench.report.svg import (
    BOTTOM,
    LABEL_HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Plot,
    axis_over,
    shorten,
    spaced,
    text,
)
from tta_bench.report.trace import MAX_POINTS
from tta_bench.results.visits import Visit

LANE = 15
BAND = 12
FAMILIES = ("#b35806", "#4575b4", "#1b8a6b", "#7a6bb0")
"""Noise, blur, weather, digital: distinguishable with all common kinds of colour vision, and labelled as well."""

Points = Sequence[tuple[float, float]]


def domain_colours(domains: Sequence[str]) -> dict[str, str]:
    """Choose a colour per domain: the hue of its group, from strong to pale; by position for other domains."""
    known = {name: (f, k) for f, group in enumerate(CORRUPTION_GROUPS.values()) for k, name in enumerate(group)}
    places = {name: known.get(name, (i % 4, i // 4 % 4)) for i, name in enumerate(domains)}
    return {name: _paler(FAMILIES[family], 0.2 * member) for name, (family, member) in places.items()}


def _is_pale(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140


def _paler(colour: str, share: float) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (255 - part)):02x}" for part in parts)


@dataclass(frozen=True)
class Line:
    """A curve of a run.

    Attributes:
        run: The run.
        look: Appearance of its entry.
        label: Its name.
        points: Its points (batch, value).
        style: CSS class that distinguishes the curves of one run.
    """

    run: RunRecord
    look: Look
    label: str
    points: Points
    style: str = ""


def stream_figures(group: Group, stream: StreamId, looks: Mapping[Entry, Look]) -> list[tuple[str, str]]:
    """Draw (title, SVG) of a stream: its domains, running error or IoU, coreset, distance to the source."""
    shown = [(entry, run) for entry in group.entries for run in _shown_runs(entry, stream)]
    longest = max((run for _, run in shown), key=lambda run: run.trace.steps, default=None)
    if longest is None or not longest.trace.steps:
        return []
    smallest, largest = longest.trace.batch_sizes
    size = f"{'up to ' * (smallest < largest)}{largest} sample{'s' * (largest > 1)} each"
    batches = Axis(f"batch of the stream ({size})", 0, longest.trace.steps)
    columns = _Columns(longest.trace.visits, longest.trace.steps)
    charts = [("When which domain arrives", _lanes(batches, columns, group.domains or list(columns.present)))]
    kinds = (
        ("Running mean IoU", "mean IoU so far (%)", ["running_iou"])
        if group.segments
        else ("Running error", "error so far (%)", ["running_error"]),
        ("Coreset growth", "elements in the coreset", ["coreset_size"]),
        ("Distance to the source", "distance of feature statistics", None),
    )
    for title, unit, wanted in kinds:
        lines = []
        for entry, run in shown:
            names = wanted or [name for name in run.trace.curves if name.startswith("distance")]
            for k, name in enumerate(n for n in names if n in run.trace.curves):
                label = entry.label + ("" if wanted else f" {name.removeprefix('distance').strip('_ ')}")
                label += "" if run.done else f" ({run.result['status']})"
                lines.append(Line(run, looks[entry], label, run.trace.curves[name], "" if wanted else f"dash{k % 4}"))
        if lines:
            charts.append((title, _curves(batches, unit, lines, columns, title, longest.pauses)))
    return charts


def _shown_runs(entry: Entry, stream: StreamId) -> list[RunRecord]:
    """The counted run of a stream, or the unfinished runs so far."""
    if stream in entry.counted:
        return [entry.counted[stream]]
    return [run for run in entry.runs if run.stream == stream and run.trace.steps][-1:]


class _Columns:
    """A stream in columns of equal numbers of batches: the domains in each, and the most frequent one."""

    def __init__(self, visits: Sequence[Visit], steps: int) -> None:
        self.width = -(-steps // (2 * MAX_POINTS))
        count = -(-steps // self.width)
        self.steps = steps
        self.present: dict[str, set[int]] = {}
        weight: list[dict[str, float]] = [{} for _ in range(count)]
        for v in visits:
            density = v.samples / (v.stop - v.start)
            for c in range(v.start // self.width, -(-v.stop // self.width)):
                batches = min(v.stop, (c + 1) * self.width) - max(v.start, c * self.width)
                self.present.setdefault(v.domain, set()).add(c)
                weight[c][v.domain] = weight[c].get(v.domain, 0.0) + batches * density
        prevailing = [max(sorted(w), key=lambda name: w[name], default="") for w in weight]
        self.band = [(prevailing[a], *self._batches(a, b)) for a, b in _runs(prevailing)]

    def spans(self, domain: str) -> list[tuple[int, int]]:
        """Batches [start, stop) with the domain."""
        count = -(-self.steps // self.width)
        inside = [c in self.present.get(domain, ()) for c in range(count)]
        return [self._batches(a, b) for a, b in _runs(inside) if inside[a]]

    def _batches(self, start: int, stop: int) -> tuple[int, int]:
        return start * self.width, min(stop * self.width, self.steps)


def _runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """Maximal runs [start, stop) of equal values."""
    edges = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    return list(pairwise(edges))


def _lanes(batches: Axis, columns: _Columns, domains: Sequence[str]) -> str:
    plot = Plot(batches, Axis("", 0, 1), TOP + LANE * len(domains) + 44, "which domain arrives in which batch")
    colours = domain_colours(domains)
    for k, name in enumerate(domains):
        y = TOP + LANE * k
        plot.add(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y + LANE}" y2="{y + LANE}"/>')
        plot.add(text(LEFT - 8, y + 11.5, shorten(name.replace("_", " "), 18), "end"))
        ends = [(plot.at(a, 0)[0], plot.at(b, 0)[0]) for a, b in columns.spans(name)]
        path = "".join(f"M{a:.1f} {y + 2}H{max(b, a + 0.7):.1f}V{y + LANE - 2}H{a:.1f}Z" for a, b in ends)
        plot.add(f'<path fill="{colours[name]}" d="{path}"><title>{escape(name)}</title></path>')
    plot.axes(grid=False)
    return str(plot)


def _curves(
    batches: Axis, unit: str, lines: Sequence[Line], columns: _Columns, title: str, pauses: Sequence[int] = ()
) -> str:
    y = axis_over(unit, (value for line in lines for _, value in line.points), from_zero=unit.startswith("elements"))
    labelled = [line for line in lines if line.look.stands_out]
    plot = Plot(
        batches, y, max(270, TOP + BOTTOM + int(LABEL_HEIGHT) * len(labelled)), f"{title}: {unit} against batch"
    )
    _band(plot, columns)
    plot.axes()
    for step in pauses:
        x = plot.at(step, y.low)[0]
        note = f"<title>a pause before or in batch {step}</title>"
        plot.add(f'<line class="grid dash1" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{plot.bottom:.1f}">{note}</line>')
    for line in sorted(lines, key=lambda line: line.look.stands_out):
        kinds = f"line {line.look.colour} {line.style}" + ("" if line.run.done else " part")
        name = f"<title>{escape(line.label)}</title>"
        points = f'points="{plot.line(line.points)}"'
        plot.add(f'<polyline class="{kinds}" data-entry="{line.look.id}" {points}>{name}</polyline>')
    _end_labels(plot, labelled)
    return str(plot)


def _end_labels(plot: Plot, lines: Sequence[Line]) -> None:
    ends = [plot.at(*line.points[-1]) for line in lines]
    heights = spaced([y for _, y in ends], low=TOP, high=plot.bottom)
    for line, (x, y), height in zip(lines, ends, heights, strict=True):
        plot.add(
            f'<g class="end {line.look.colour}" data-entry="{line.look.id}">'
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT + 10}" y2="{height:.1f}"/>'
            f"{text(WIDTH - RIGHT + 13, height + 4, shorten(line.label))}</g>"
        )


def _band(plot: Plot, columns: _Columns) -> None:
    """Draw the most frequent domain of each batch above the curves."""
    domains = sorted(columns.present)
    colours = domain_colours(domains)
    names = {name: short for _, group in domain_groups(domains) for name, short in group.items()}
    for domain, start, stop in columns.band:
        (a, _), (b, _) = plot.at(start, plot.y.low), plot.at(stop, plot.y.low)
        title = f"<title>{escape(domain)}, batches {start} to {stop - 1}</title>"
        box = f'x="{a:.1f}" y="4" width="{b - a:.1f}" height="{BAND}" fill="{colours.get(domain, "none")}"'
        plot.add(f"<rect {box}>{title}</rect>")
        if len(names.get(domain, "")) * 5.6 < b - a and domain in names:
            plot.add(text((a + b) / 2, 13.5, names[domain], "middle", "on pale" if _is_pale(colours[domain]) else "on"))


def cost_figure(group: Group, looks: Mapping[Entry, Look]) -> str:
    """Draw mean error or IoU against forward and backward passes per sample; empty without finished runs."""
    measure = mean_measure(group)
    name_of = measure.title[0].lower() + measure.title[1:]
    points: list[tuple[Entry, float, float]] = []
    for entry in group.entries:
        score, forward, backward = (entry.spread(m.value) for m in (measure, COST[0], COST[1]))
        if score and forward and backward and forward.mean > 0:
            points.append((entry, forward.mean + backward.mean, score.mean))
    if not points:
        return ""
    costs = [cost for _, cost, _ in points]
    x = axis_over("forward + backward passes per sample", costs, log=max(costs) > 20 * min(costs), from_zero=True)
    plot = Plot(x, axis_over(f"{name_of} (%)", (score for *_, score in points)), 330, f"{name_of} against cost")
    plot.axes()
    points.sort(key=lambda point: looks[point[0]].stands_out)
    for entry, passes, percent in points:
        look, (px, py) = looks[entry], plot.at(passes, percent)
        name = f"<title>{escape(entry.label)}: {percent:.1f} %, {passes:.2f} passes per sample</title>"
        place = f'cx="{px:.1f}" cy="{py:.1f}" r="5"'
        plot.add(f'<circle class="dot {look.colour}" data-entry="{look.id}" {place}>{name}</circle>')
    _dot_labels(plot, [point for point in points if looks[point[0]].stands_out], looks)
    return str(plot)


def _dot_labels(plot: Plot, points: Iterable[tuple[Entry, float, float]], looks: Mapping[Entry, Look]) -> None:
    """Label each dot: on its left if another dot is on its right, shifted up or down if labels overlap."""
    placed = [(entry, *plot.at(cost, error)) for entry, cost, error in points]
    heights = spaced([y for *_, y in placed], low=TOP, high=plot.bottom - 6)
    for (entry, x, y), height in zip(placed, heights, strict=True):
        look, name = looks[entry], shorten(entry.label)
        width = 6.2 * len(name)
        blocked = any(0 < other - x < width + 20 and abs(above - height) < 9 for _, other, above in placed)
        left = blocked and x - width - 13 > LEFT
        side, anchor = (-1, "end") if left else (1, "start")
        plot.add(
            f'<g class="end {look.colour}" data-entry="{look.id}">'
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + 11 * side:.1f}" y2="{height:.1f}"/>'
            f"{text(x + 13 * side, height + 4, name, anchor)}</g>"
        )
