"""Weights & Biases: one run per group of comparable runs, with their comparison."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from tta_bench.console import say
from tta_bench.loggers.wandb_names import comparison_name, protocol_of_group
from tta_bench.loggers.wandb_run import init, load_wandb, wandb_mode
from tta_bench.loggers.wandb_view import tell_view
from tta_bench.report.groups import Entry, Group, group_runs
from tta_bench.report.measures import (
    COST,
    Measure,
    best_first,
    column_measures,
    domain_measures,
    extra_measures,
    mean_measure,
)
from tta_bench.report.page import html_report
from tta_bench.report.runs import Result, RunRecord
from tta_bench.report.trace import MAX_POINTS
from tta_bench.results.run_folder import read_results

PREFIX = "compare-"
MAX_ROWS = 10_000
"""Number of rows of a table that W&B draws."""


def compare_bench(results: Sequence[Result], settings: DictConfig | None, console: Console) -> None:
    """Log a comparison of the runs of a bench with all comparable earlier runs in its folder.

    A bench is complete without the comparison, so any error here is only reported in one sentence.

    Args:
        results: The runs of the bench.
        settings: The logger's configuration node; None if W&B is not used.
        console: Where to print.
    """
    if settings is None or wandb_mode(settings.mode) == "disabled":
        return
    try:
        mine = {Path(result["folder"]).resolve() for result in results if "folder" in result}
        home = next(iter(mine)).parents[1]
        groups = [
            group
            for group in group_runs(map(RunRecord, read_results([home])))
            if any(run.folder and run.folder.resolve() in mine for run in group.runs)
        ]
        place = {"project": settings.project, "entity": settings.entity, "mode": wandb_mode(settings.mode)}
        log_comparisons(groups, home, console, **place)
    except Exception as error:  # anything, from a network to another program's files
        say(console, f"W&B did not get the comparison: {error}", "yellow")


def log_comparisons(groups: Iterable[Group], folder: Path, console: Console, **place: Any) -> None:
    """Log one run per group that has numbers; logging a group again replaces the content of its run.

    Args:
        groups: The groups.
        folder: Where W&B keeps its files.
        console: Where to print the addresses.
        place: Project, entity and mode.

    Raises:
        wandb.Error: If W&B fails.
    """
    for group in groups:
        if any(entry.counted for entry in group.entries):
            _log(group, folder, console, place)


def _log(group: Group, folder: Path, console: Console, place: dict[str, Any]) -> None:
    dataset, setting, model = group.protocol[""]
    protocol = protocol_of_group(group)
    name = PREFIX + protocol
    for outdated in (folder / "wandb").glob(f"offline-run-*-{name}"):
        shutil.rmtree(outdated)
    run = init(
        folder,
        id=name,
        name=f"compare {dataset} {setting}",
        group=comparison_name(group),
        job_type="compare",
        tags=["compare", setting, dataset],
        config={
            "compares": protocol,  # not under the name that runs use, or their views would show it as well
            "dataset": dataset,
            "setting": setting,
            "model": model,
            "streams": [str(stream) for stream in group.streams],
            "entries": [entry.label for entry in group.entries],
            "agrees_in": {key: value for key, value in group.protocol.items() if key},
        },
        resume="allow" if place["mode"] == "online" else None,
        **place,
    )
    try:
        run.log({f"compare/{key}": value for key, value in comparison(group)})
        best = best_first(group)[0]
        mean = mean_measure(group)
        found = best.spread(mean.value)
        run.summary.update({"best": best.label, f"best_{mean.key}": found.mean if found else None})
        run.summary.update({"methods": len(group.entries), "runs": len(group.runs)})
        if run.url:
            told = f"W&B: comparison in {run.url}; {tell_view(run, protocol, _curve(group))}"
            say(console, told)
    finally:
        run.finish()


def comparison(group: Group) -> Iterator[tuple[str, Any]]:
    """Tables, charts and the report page that the run of a group logs, by key.

    Args:
        group: A group with numbers.
    """
    wandb = load_wandb()
    entries = [entry for entry in best_first(group) if entry.counted]
    yield "methods", wandb.Table(**methods_table(group, entries))
    yield "domains", wandb.Table(**domains_table(group, entries))
    mean = mean_measure(group)
    means = [[entry.label, found.mean] for entry in entries if (found := entry.spread(mean.value))]
    bars = wandb.Table(columns=["method", mean.title], data=means)
    yield mean.key, wandb.plot.bar(bars, "method", mean.title, title=f"{mean.title} in {mean.unit}")
    curve = _curve(group)
    for stream in group.streams:
        shown = [(entry.label, entry.counted[stream].trace.curves) for entry in entries if stream in entry.counted]
        curves = {label: found[curve] for label, found in shown if curve in found}
        curves = dict(list(curves.items())[: MAX_ROWS // MAX_POINTS])
        if curves:
            xs, ys = ([[point[axis] for point in points] for points in curves.values()] for axis in (0, 1))
            title, key = f"{curve.replace('_', ' ')} in %, {stream}", re.sub(r"\W+", "_", f"{curve} {stream}")
            yield key, wandb.plot.line_series(xs, ys, list(curves), title=title, xname="batch")
    yield "page", wandb.Html(io.StringIO(html_report([group], None)), inject=False)


def _curve(group: Group) -> str:
    return "running_iou" if group.segments else "running_error"


def methods_table(group: Group, entries: Sequence[Entry]) -> dict[str, list]:
    """One row per entry: mean and standard deviation over streams, gain, domains, cost and further measures.

    Returns:
        ``columns`` and ``data``; unknown numbers are None.
    """
    mean, by_domain = mean_measure(group), column_measures(group)
    others = [measure for measure in (*COST, *extra_measures(group)) if measure.is_known([group])]
    measures = [mean, *by_domain, *others]
    gain = f"gain over {group.baseline}"
    titles = [mean.title, *(m.about for m in by_domain), *(m.title for m in others)]
    columns = ["method", "streams", "notes", *map(_with_unit, titles, measures)]
    columns[4:4] = ["std over streams", gain, f"{gain}, low", f"{gain}, high"]
    data = []
    for entry in entries:
        found = [entry.spread(measure.value) for measure in measures]
        difference = group.gain(entry)
        low, high = (difference.interval if difference else None) or (None, None)
        row = [entry.label, len(entry.counted), ", ".join(entry.notes), *(s.mean if s else None for s in found)]
        row[4:4] = [found[0].std if found[0] else None, difference.mean if difference else None, low, high]
        data.append(row)
    return {"columns": columns, "data": data}


def _with_unit(title: str, measure: Measure) -> str:
    return f"{title} ({measure.unit})" if measure.unit else title


def domains_table(group: Group, entries: Sequence[Entry]) -> dict[str, list]:
    """One row per domain and entry: error or mean IoU, standard deviation over streams, and number of streams.

    Returns:
        ``columns`` and ``data``.
    """
    data = [
        [measure.about, entry.label, found.mean, found.std, found.n]
        for measure in domain_measures(group)
        for entry in entries
        if (found := entry.spread(measure.value))
    ]
    value = "mean IoU (%)" if group.segments else "error (%)"
    return {"columns": ["domain", "method", value, "std over streams", "streams"], "data": data}
