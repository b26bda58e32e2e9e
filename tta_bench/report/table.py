"""Methods side by side in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

Result = dict[str, Any]
# Runs are compared only if all of this agrees.
PROTOCOL = ("dataset", "setting", "model", "weights_sha256", "preprocess", "data")


def comparison_tables(results: Sequence[Result]) -> list[Table]:
    """One table per protocol: domains down, methods across, mean and standard deviation over seeds.

    Runs on different data, settings or weights get tables of their own; they are never averaged.

    Args:
        results: Contents of ``result.json`` files.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(repr([result[key] for key in PROTOCOL]), []).append(result)
    return [_table(group) for group in groups.values()]


def _table(results: list[Result]) -> Table:
    first = results[0]
    methods: dict[str, list[Result]] = {}
    for result in results:
        methods.setdefault(result["method"], []).append(result)
    seeds = sorted({r["seed"] for r in results})
    table = Table(
        title=f"{first['dataset']} · {first['setting']} · {first['model']} · seed{'s' * (len(seeds) > 1)} "
        f"{', '.join(map(str, seeds))}",
        caption="error in %, lower is better" + ("; mean ± standard deviation over seeds" if len(seeds) > 1 else ""),
    )
    table.add_column("domain", no_wrap=True)
    for name, runs in methods.items():
        failed = sum(r["status"] != "done" for r in runs)
        table.add_column(f"{name} ({failed} failed)" if failed else name, justify="right")
    done = {name: [r for r in runs if r["status"] == "done"] for name, runs in methods.items()}
    for domain in dict.fromkeys(
        d for runs in done.values() for r in runs for d in sorted(r["domain_error"], key=_order(first))
    ):
        _add_errors(table, domain, {n: [r["domain_error"][domain] for r in runs] for n, runs in done.items()})
    table.add_section()
    _add_errors(table, "mean", {n: [r["mean_error"] for r in runs] for n, runs in done.items()}, "bold")
    _add(table, "gain over source", done, lambda r: _gain(r), "{:+.1f}")
    table.add_section()
    _add(table, "forward / sample", done, lambda r: r["forward_per_sample"], "{:.2f}")
    _add(table, "backward / sample", done, lambda r: r["backward_per_sample"], "{:.2f}")
    _add(table, "coreset size", done, lambda r: r["coreset_size"], "{:.1f}" if len(seeds) > 1 else "{:.0f}")
    _add(table, "seconds", done, lambda r: r["seconds"], "{:.1f}")
    return table


def _order(result: Result) -> Any:
    """Sort key: the data set's own order of domains, whatever the stream showed first."""
    names = list(result.get("domains", []))
    return lambda name: (names.index(name) if name in names else len(names), name)


def _gain(result: Result) -> float | None:
    return None if result["source_mean_error"] is None else result["source_mean_error"] - result["mean_error"]


def _add_errors(table: Table, label: str, values: dict[str, list[float]], style: str = "") -> None:
    means = {name: fmean(v) for name, v in values.items() if v}
    best = min(means.values(), default=None)
    cells = []
    for name, v in values.items():
        text = _spread(v, "{:.1f}")
        cells.append(f"[bold green]{text}[/]" if v and len(means) > 1 and means[name] == best else text)
    table.add_row(label, *cells, style=style)


def _add(table: Table, label: str, done: dict[str, list[Result]], value: Any, form: str) -> None:
    cells = [_spread([x for x in map(value, runs) if x is not None], form, with_std=False) for runs in done.values()]
    table.add_row(label, *cells)


def _spread(values: list[float], form: str, with_std: bool = True) -> str:
    if not values:
        return "–"
    text = form.format(fmean(values))
    return f"{text} ± {stdev(values):.1f}" if with_std and len(values) > 1 else text
