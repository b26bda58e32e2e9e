"""All numbers in long form, one per line, for other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from tta_bench.report.groups import Entry, Group
from tta_bench.report.measures import COST, Measure, domain_measures, extra_measures, mean_measure, round_measures

COLUMNS = (
    "group", "dataset", "setting", "model", "entry", "method", "seed", "order", "stream_sha256", "status",
    "measure", "domain", "visit", "unit", "statistic", "value", "folder", "disagreement",
)  # fmt: skip


def csv_report(groups: Sequence[Group]) -> str:
    """Format one line per run, measure and domain (statistic ``value``), and ``mean``, ``std`` and ``n`` per entry.

    The measure ``gain`` has ``mean``, ``interval_low``, ``interval_high`` and ``n``. Lines of one ``group`` may be
    compared. A run without numbers has one line with its status.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for number, group in enumerate(groups, start=1):
        dataset, setting, model = group.protocol[""]
        common = {"group": number, "dataset": dataset, "setting": setting, "model": model}
        for entry in group.entries:
            named = {**common, "entry": entry.label, "method": entry.method}
            writer.writerows({**named, **line} for line in _lines(group, entry))
    return text.getvalue()


def _lines(group: Group, entry: Entry) -> Iterator[dict[str, object]]:
    measures = [*domain_measures(group), *round_measures(group), mean_measure(group), *COST, *extra_measures(group)]
    for run in entry.runs:
        facts = {
            "seed": run.stream.seed,
            "order": run.stream.order,
            "stream_sha256": run.result.get("stream_sha256", ""),
            "status": "repeated" if run.done and run not in entry.counted.values() else run.result["status"],
            "folder": run.folder or "",
            "disagreement": run.disagreement,
        }
        if run not in entry.counted.values():
            yield facts
            continue
        for measure in measures:
            if (value := measure.value(run)) is not None:
                yield {**facts, **_named(measure), "statistic": "value", "value": value}
        for visit in run.trace.visits:
            if visit.error is None:
                continue
            place = {"measure": "visit_error", "domain": visit.domain, "visit": visit.number, "unit": "%"}
            yield {**facts, **place, "statistic": "value", "value": visit.error}
    for measure in measures:
        if found := entry.spread(measure.value):
            numbers = {"mean": found.mean, "std": found.std, "n": found.n}
            yield from ({**_named(measure), "statistic": k, "value": v} for k, v in numbers.items() if v is not None)
    if gain := group.gain(entry):
        low, high = gain.interval or (None, None)
        numbers = {"mean": gain.mean, "interval_low": low, "interval_high": high, "n": gain.n}
        named = {"measure": f"gain over {group.baseline}", "unit": "points"}
        yield from ({**named, "statistic": k, "value": v} for k, v in numbers.items() if v is not None)


def _named(measure: Measure) -> dict[str, str]:
    key, _, domain = measure.key.partition("/")
    return {"measure": key, "domain": domain, "unit": measure.unit}
