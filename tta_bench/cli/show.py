"""Inspect a stream before anything runs on it. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from tta_bench.config.compose import build, compose_stream, plain, require
from tta_bench.console import say
from tta_bench.datasets.base import arrival_order
from tta_bench.datasets.segmentation.label_map_domains import check_setting
from tta_bench.streams import Schedule, make_stream, plot_timeline, timeline_text

SHOWS_CLASSES = ("ptta", "mixed")
"""Streams whose plots also show how the classes arrive: correlated in time, or independently."""


def make_schedule(words: Sequence[str]) -> Schedule:
    """The schedule that a run with these overrides would see."""
    return _with_labels(words)[0]


def _with_labels(words: Sequence[str]) -> tuple[Schedule, dict[str, np.ndarray]]:
    composed = compose_stream(words)
    require(composed.config)
    domains = build(composed.config.dataset)
    setting = plain(composed.config.setting)
    check_setting(domains, setting["kind"])
    labels = {name: np.asarray(domains.labels(name)) for name in domains.domains}
    given = {"labels": labels, "arrivals": arrival_order(domains), "seed": composed.config.seed}
    return make_stream(setting.pop("kind"), **given, **setting), labels


def show_stream(words: Sequence[str], plot: Path | None, console: Console) -> None:
    """Print domains, fingerprint and timeline; plot the timeline if a file is given.

    Raises:
        ConfigError: If an override is wrong.
        ValueError: If the file extension is not supported.
    """
    if plot is not None and plot.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--plot must end in .png, .pdf or .svg, got {plot}")
    schedule, labels = _with_labels(words)
    say(console, schedule.describe())
    console.print(timeline_text(schedule, width=console.width))
    if plot is not None:
        plot_timeline(schedule, plot, " ".join(words), labels if schedule.kind in SHOWS_CLASSES else None)
        say(console, f"timeline written to {plot}")
