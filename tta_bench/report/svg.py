"""Scales, axes and marks of figures as inline SVG; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 122, 178, 24, 44
"""Margins for domain names, for labels at the ends of lines, for a band and for an axis."""
WIDTH = 860
LABEL_CHARS = 24
LABEL_HEIGHT = 13.0


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        title: Its title, with the unit.
        low: Its first value.
        high: Its last value.
        log: Whether it is logarithmic; ``low`` must then be positive.
    """

    title: str
    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Relative position of a value between ``low`` (0) and ``high`` (1)."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Choose about five round values.

        Example:
            >>> Axis("error (%)", 0, 43).ticks(), Axis("passes", 1, 300, log=True).ticks()
            ([0, 10, 20, 30, 40], [1.0, 10.0, 100.0])
        """
        if self.log:
            tens = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            bases = (1, 2, 5) if len(tens) < 3 else (1,)
            every = [base * 10.0**n for n in range(tens.start - 1, tens.stop) for base in bases]
            return [tick for tick in every if self.low <= tick <= self.high]
        rough = (self.high - self.low) / 5
        unit = 10 ** math.floor(math.log10(rough))
        step = min((m * unit for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis_over(title: str, values: Iterable[float], *, from_zero: bool = False, log: bool = False) -> Axis:
    """Create an axis with a small margin around the values."""
    found = list(values)
    low, high = min(found), max(found)
    if log:
        return Axis(title, low / 1.5, high * 1.5, log=True)
    room = 0.06 * (high - low) or max(1.0, 0.1 * abs(high))
    return Axis(title, 0.0 if from_zero else low - room, high + room)


class Plot:
    """A figure with two axes, to which marks are added.

    Args:
        x: Horizontal axis.
        y: Vertical axis.
        height: Height of the whole figure.
        summary: Description for readers who cannot see it.
    """

    def __init__(self, x: Axis, y: Axis, height: int, summary: str) -> None:
        self.x, self.y, self.height, self.summary = x, y, height, summary
        self.bottom = height - BOTTOM
        self._marks: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Position of a point."""
        across = LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)
        return across, self.bottom - self.y.share(y) * (self.bottom - TOP)

    def add(self, mark: str) -> None:
        """Add a mark."""
        self._marks.append(mark)

    def line(self, points: Sequence[tuple[float, float]]) -> str:
        """The coordinates of a line, for ``<polyline points>``."""
        return " ".join(f"{px:.1f},{py:.1f}" for px, py in (self.at(*point) for point in points))

    def axes(self, *, grid: bool = True) -> None:
        """Draw both axes with titles and ticks."""
        for tick in self.x.ticks():
            px, _ = self.at(tick, self.y.low)
            self.add(f'<line class="tick" x1="{px:.1f}" x2="{px:.1f}" y1="{self.bottom}" y2="{self.bottom + 4}"/>')
            self.add(text(px, self.bottom + 16, f"{tick:g}", "middle"))
        for tick in self.y.ticks() if grid else ():
            _, py = self.at(self.x.low, tick)
            self.add(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}"/>')
            self.add(text(LEFT - 8, py + 4, f"{tick:g}", "end"))
        self.add(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.bottom}" y2="{self.bottom}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        self.add(text(middle, self.height - 8, self.x.title, "middle", "title"))
        if self.y.title:
            across = (TOP + self.bottom) / 2
            turned = f'transform="rotate(-90 {LEFT - 62} {across:.0f})"'
            self.add(text(LEFT - 62, across, self.y.title, "middle", "title", turned))

    def __str__(self) -> str:
        marks = "\n".join(self._marks)
        name = escape(self.summary)
        return f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{name}">\n{marks}\n</svg>'


def text(x: float, y: float, content: str, anchor: str = "start", kind: str = "", more: str = "") -> str:
    """Create a text element; ``anchor`` is start, middle or end."""
    kinds = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kinds} {more}>{escape(content)}</text>'


def shorten(name: str, most: int = LABEL_CHARS) -> str:
    """Omit the middle of a long name: methods differ at the beginning, their hyper-parameters at the end.

    Example:
        >>> shorten("dpcore prompt_length=16 rho=0.85", 20)
        'dpcore promp…rho=0.85'
    """
    if len(name) <= most:
        return name
    tail = 2 * most // 5
    return f"{name[: most - tail]}…{name[-tail:]}"


def spaced(wanted: Sequence[float], gap: float = LABEL_HEIGHT, low: float = 0.0, high: float = math.inf) -> list[float]:
    """Spread positions to be at least ``gap`` apart and within [low, high] if they fit, keeping their order.

    Example:
        >>> spaced([10, 12, 50], gap=10)
        [10, 20, 50]
        >>> spaced([10, 12, 50], gap=10, high=50)
        [10, 20, 50]
        >>> spaced([48, 50, 20], gap=10, high=50)
        [40, 50, 20]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = dict(enumerate(wanted))
    above = low - gap
    for i in order:
        placed[i] = above = max(wanted[i], above + gap)
    below = high + gap
    for i in reversed(order):
        placed[i] = below = min(placed[i], below - gap)
    return [placed[i] for i in range(len(wanted))]
