"""Methods side by side in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

from rich.markup import escape
from rich.table import Table

Result = dict[str, Any]


def comparison_tables(results: Sequence[Result]) -> list[Table]:
    """One table per protocol: domains down, methods across, mean and standard deviation over seeds.

    Runs on different data, settings or weights get tables of their own; they are never averaged.

    Args:
        results: Contents of ``result.json`` files.
    """
    return [_table(group, note) for group, note in _grouped(results, _protocol)]


def _grouped(results: Sequence[Result], key: Callable[[Result], dict[str, Any]]) -> list[tuple[list[Result], str]]:
    """Results whose keys agree, with a note on what tells each group from the others of the same name."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(repr(key(result)), []).append(result)
    keys = [key(group[0]) for group in groups.values()]
    notes = []
    for own in keys:
        others = [other for other in keys if other[""] == own[""]]
        differing = [k for k in own if any(other.get(k) != own[k] for other in others)]
        notes.append(" ".join(f"{k}={own[k]}" for k in differing))
    return list(zip(groups.values(), notes, strict=True))


def _protocol(result: Result) -> dict[str, Any]:
    """All in which runs must agree to be compared, and under "" what every table shows of it."""
    config = result["config"]
    name = [result[key] for key in ("dataset", "setting", "model")]
    setting = {f"setting.{k}": v for k, v in config["setting"].items()}
    data = {f"dataset.{k}": v for k, v in result["data"].items()}
    rest = {key: result[key] for key in ("domains", "weights_sha256", "preprocess")}
    return {"": name, **setting, **data, **rest, "trainer.precision": config["trainer"]["precision"]}


def _method(result: Result) -> dict[str, Any]:
    """All in which runs must agree to be averaged over seeds, and under "" the method's name."""
    return {"": result["method"], **result["config"]["method"]}


def _table(results: list[Result], note: str) -> Table:
    first = results[0]
    methods: dict[str, list[Result]] = {}
    for runs, difference in _grouped(results, _method):
        methods[f"{runs[0]['method']} {difference}".strip()] = runs
    seeds = sorted({r["seed"] for r in results})
    table = Table(
        title=f"{first['dataset']} · {first['setting']} · {first['model']} · seed{'s' * (len(seeds) > 1)} "
        f"{', '.join(map(str, seeds))}" + (f"\n{escape(note)}" if note else ""),
        caption="error in %, lower is better" + ("; mean ± standard deviation over seeds" if len(seeds) > 1 else ""),
    )
    table.add_column("domain", no_wrap=True)
    for name, runs in methods.items():
        counts = {status: sum(r["status"] == status for r in runs) for status in ("failed", "running")}
        notes = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        table.add_column(f"{name} ({notes})" if notes else name, justify="right")
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
