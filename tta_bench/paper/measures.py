"""Measures in the cells of the paper's tables, read from the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean

from tta_bench.report.runs import RunRecord
from tta_bench.results.rows import BatchRow
from tta_bench.results.run_folder import read_rows

# Arguments: the run, the domain or None for all, and the run of the reference method on the same stream or None.
Value = Callable[[RunRecord, str | None, RunRecord | None], float | None]


@dataclass(frozen=True)
class PaperMeasure:
    """A number of a run.

    Attributes:
        label: Axis label in figures.
        value: Reads it; returns None if the run does not have it.
        form: Formats it.
        reference: The method to whose run it is relative, if any.
    """

    label: str
    value: Value
    form: Callable[[float], str]
    reference: str | None = None


def _error(run: RunRecord, domain: str | None, _: RunRecord | None) -> float | None:
    return run.number("mean_error") if domain is None else run.result["domain_error"].get(domain)


def _gain(run: RunRecord, domain: str | None, source: RunRecord | None) -> float | None:
    own, base = _error(run, domain, None), _error(source, domain, None) if source else None
    return None if own is None or base is None else base - own


def _time(run: RunRecord, _: str | None, tent: RunRecord | None) -> float | None:
    if tent is None or run.result["device"] != tent.result["device"]:
        return None
    own, base = run.number("seconds"), tent.number("seconds")
    return own / base if own and base else None


def _iou(run: RunRecord, domain: str | None, _: RunRecord | None) -> float | None:
    return run.number("mean_iou") if domain is None else run.result.get("domain_iou", {}).get(domain)


def _iou_of_round(number: int) -> Value:
    def value(run: RunRecord, domain: str | None, _: RunRecord | None) -> float | None:
        rounds = run.result.get("iou_by_round", [])
        if len(rounds) < number:
            return None
        found: float | None = rounds[number - 1]["mean"] if domain is None else rounds[number - 1]["domain"].get(domain)
        return found

    return value


def _iou_gain(run: RunRecord, domain: str | None, source: RunRecord | None) -> float | None:
    own, base = _iou(run, domain, None), _iou(source, domain, None) if source else None
    return None if own is None or base is None else own - base


def _number(key: str) -> Value:
    return lambda run, domain, _: run.number(key)


def _coreset_size(run: RunRecord, domain: str | None, _: RunRecord | None) -> float | None:
    sizes = _diagnostic(run, domain, "coreset_size")
    return sizes[-1] if sizes else None


def _distance(name: str) -> Value:
    def value(run: RunRecord, domain: str | None, _: RunRecord | None) -> float | None:
        distances = _diagnostic(run, domain, name)
        return fmean(distances) if distances else None

    return value


def _diagnostic(run: RunRecord, domain: str | None, name: str) -> list[float]:
    """A number of every batch that has it, optionally only batches with the domain."""
    found = [
        row.diagnostics[name] for row in _rows(run) if name in row.diagnostics and domain in (None, *row.by_domain)
    ]
    return [x for x in found if not isnan(x)]


def _rows(run: RunRecord) -> Sequence[BatchRow]:
    assert run.folder is not None  # results here come from folders
    file = run.folder / "batches.csv"
    return read_rows(file, file.stat().st_size)


def short(x: float) -> str:
    """Format a number with at most two decimals.

    Example:
        >>> [short(x) for x in (1.0, 1.056, 11.7, 0.0)]
        ['1', '1.06', '11.7', '0']
    """
    return f"{x:.2f}".rstrip("0").rstrip(".")


def count(x: float) -> str:
    """Format a number of parameters.

    Example:
        >>> [count(x) for x in (0, 512, 1800, 30_000, 86_570_000, -2_500)]
        ['0', '512', '1.8k', '30k', '86.57M', '-2.5k']
    """
    size = abs(x)
    return f"{short(x / 1e6)}M" if size >= 1e6 else f"{short(x / 1e3)}k" if size >= 1e3 else short(x)


def _percent(x: float) -> str:
    return f"{x:.1f}"


def _points(x: float) -> str:
    return f"{x:+z.1f}"


MEASURES = {
    "error": PaperMeasure("error (%)", _error, _percent),
    "gain": PaperMeasure("gain over Source (points)", _gain, _points, "source"),
    "mean_iou": PaperMeasure("mean IoU (%)", _iou, _percent),
    "iou_round_1": PaperMeasure("mean IoU (%)", _iou_of_round(1), _percent),
    "iou_round_2": PaperMeasure("mean IoU (%)", _iou_of_round(2), _percent),
    "iou_round_3": PaperMeasure("mean IoU (%)", _iou_of_round(3), _percent),
    "iou_gain": PaperMeasure("gain over Source (points)", _iou_gain, _points, "source"),
    "time": PaperMeasure("time (Tent = 1)", _time, _percent, "tent"),
    "forward": PaperMeasure("forward passes per sample", _number("forward_per_sample"), short),
    "backward": PaperMeasure("backward passes per sample", _number("backward_per_sample"), short),
    "trainable_parameters": PaperMeasure("trainable parameters", _number("trainable_parameters"), count),
    "extra_parameters": PaperMeasure("parameters beyond the model", _number("extra_parameters"), count),
    "coreset_size": PaperMeasure("coreset size", _coreset_size, short),
    "distance_raw": PaperMeasure("distance to the source", _distance("distance_raw"), short),
    "distance_weighted": PaperMeasure("distance to the source", _distance("distance_weighted"), short),
}
