"""Style of figures for papers: sizes, fonts and colours, and how they are saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tta_bench.report.looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.5, 2.9  # inches; the text of NeurIPS and ICLR papers is 5.5 inches wide
NAME_SIZE = 7  # points
STYLE: Mapping[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": NAME_SIZE,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType: embedded as text; publishers refuse the default, Type 3
    "svg.hashsalt": "tta_bench",  # otherwise ids in the file are random
}
SAVED: Mapping[str, Mapping[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
"""The formats, by suffix, each with the metadata that would make two files of the same figure differ."""

# As on the page; distinguishable with all common kinds of colour vision, and by their dashes and markers in grey.
APPEARANCES: Mapping[str, tuple[str, Any, str]] = {
    "c0": ("#0072b2", "solid", "o"),
    "c1": ("#d55e00", (0, (5, 1.5)), "s"),
    "c2": ("#00815c", (0, (3, 1, 1, 1)), "^"),
    "c3": ("#b4578f", (0, (1, 1)), "D"),
    "c4": ("#b87a00", (0, (5, 1, 1, 1, 1, 1)), "v"),
    "c5": ("#3a8fc7", (0, (2, 1)), "P"),
    "base": ("#17202b", "solid", "X"),
    "other": ("#a9b2bd", "solid", "."),
}


@dataclass(frozen=True)
class Mark:
    """How an entry is drawn.

    Attributes:
        colour: Colour of its lines and markers.
        dashes: Line style of matplotlib.
        marker: Marker of matplotlib.
        order: Elements of higher order are drawn above others.
    """

    colour: str
    dashes: Any
    marker: str
    order: float

    @classmethod
    def of(cls, look: Look) -> Mark:
        """The appearance that an entry also has on the page."""
        return cls(*APPEARANCES[look.colour], 3.0 if look.stands_out else 2.0)

    @property
    def line(self) -> dict[str, Any]:
        """Arguments for a line."""
        thin = {} if self.order > 2 else {"linewidth": 0.7}
        return {"color": self.colour, "linestyle": self.dashes, "zorder": self.order, **thin}

    @property
    def points(self) -> dict[str, Any]:
        """Arguments for points with error bars."""
        return {"color": self.colour, "fmt": self.marker, "zorder": self.order, "elinewidth": 0.8, "capsize": 1.5}


def empty_figure(width: float = WIDTH, height: float = HEIGHT, panels: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """A figure with panels side by side, without pyplot, which would keep it in memory."""
    from matplotlib.figure import Figure  # slow to import, and only needed for figures

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])


def add_legend(figure: Figure) -> None:
    """Explain the lines and points of the first panel below the figure, in as many columns as fit its width."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    entry = 0.6 * NAME_SIZE * max(map(len, labels)) + 35  # points; the line and the gaps beside a name take 35
    columns = max(1, min(len(labels), 4, int(72 * figure.get_figwidth() / entry)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def name_points(ax: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], colours: Sequence[str]) -> None:
    """Write names beside points: on the left of points in the right part of the panel, moved up or down if in the way.

    The panel must have its final place already.
    """
    scale = 72 / ax.figure.dpi
    at = [(float(x) * scale, float(y) * scale) for x, y in ax.transData.transform(points)]
    right = scale * float(ax.transAxes.transform((0.6, 0))[0])
    boxes: list[tuple[float, float]] = []  # left end and middle of the names so far, in points, like ``at``
    taken: list[float] = []  # their widths
    for (x, y), point, name, colour in zip(at, points, names, colours, strict=True):
        width = 0.6 * NAME_SIZE * len(name)
        left = x - 5 - width if x > right else x + 5

        def is_free(shift: float, left: float = left, y: float = y, width: float = width) -> bool:
            near = [other for other, (_, middle) in enumerate(boxes) if abs(middle - y - shift) < NAME_SIZE]
            return not any(left < boxes[k][0] + taken[k] and boxes[k][0] < left + width for k in near)

        shifts = [sign * step * NAME_SIZE / 2 for step in range(len(names) * 2) for sign in (1, -1)]
        shift = next(filter(is_free, shifts), 0.0)
        boxes.append((left, y + shift))
        taken.append(width)
        away = (-5 if x > right else 5, shift)
        ax.annotate(
            name, point, away, textcoords="offset points", ha="right" if x > right else "left", va="center",
            fontsize=NAME_SIZE, color=colour,
        )  # fmt: skip
