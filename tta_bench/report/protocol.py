"""The protocol behind a group's numbers, and the differences between groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tta_bench.report.groups import Group
from tta_bench.report.runs import RunRecord
from tta_bench.report.svg import shorten

_LONG = 20  # longest list that is shown completely
_TELLING = 3  # most keys in the contents
NAMES = ("dataset", "setting", "model")


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """(Name, its value in each group) of everything in which groups differ; missing values are empty."""
    if len(groups) < 2:
        return []
    protocols = [dict(zip(NAMES, group.protocol[""], strict=True)) | _rest(group) for group in groups]
    keys = dict.fromkeys(key for protocol in protocols for key in protocol)
    found = []
    for key in keys:
        values = [shorten(value_text(protocol[key]), 44) if key in protocol else "" for protocol in protocols]
        if len({repr(protocol.get(key)) for protocol in protocols}) > 1:
            found.append((key, values))
    return found


def telling(group: Group) -> str:
    """What distinguishes a group from others of the same name, shortly: what was set comes before what follows from it.

    A value of the setting, the data or the precision tells a reader more than a hash; hashes and lists of domains only
    stand where nothing else differs.
    """
    found = group.differs
    chosen = {key: value for key, value in found.items() if key.partition(".")[0] in ("setting", "dataset", "trainer")}
    parts = [f"{key.rpartition('.')[2].replace('_', ' ')} {shorten(value_text(value), 30)}"
             for key, value in (chosen or found).items()]  # fmt: skip
    more = len(parts) - _TELLING
    return ", ".join(parts[:_TELLING]) + (f" and {more} more" if more > 0 else "")


def protocol_card(group: Group) -> list[tuple[str, list[str]]]:
    """(Name, values) of everything on which the group's numbers depend."""
    name, setting, model = group.protocol[""]
    rest, runs = _rest(group), group.runs
    parameters = {k.partition(".")[2]: v for k, v in rest.items() if k.startswith("setting.")}
    data = {k.partition(".")[2]: v for k, v in rest.items() if k.startswith("dataset.")}
    batch_size = parameters.pop("batch_size", None)
    domains = [str(domain) for domain in rest.get("domains", [])]
    hashes = {run.stream: str(run.result.get("stream_sha256", ""))[:12] for run in runs}
    return [
        ("Data set", [str(name), *_pairs(data)]),
        ("Domains", [f"{len(domains)}: {', '.join(domains)}"]),
        ("Setting", [str(setting), *_pairs(parameters)]),
        ("Batch size", [value_text(batch_size)]),
        ("Streams", [f"{stream}: {hashes[stream]}" for stream in group.streams]),
        ("Model", [str(model), f"weights {str(rest['weights_sha256'])[:12]}", *_origins(runs)]),
        ("Preprocessing", _pairs(rest["preprocess"])),
        ("Precision", [value_text(rest["trainer.precision"])]),
        ("Devices", _distinct(runs, "device")),
        ("Versions", _versions(runs)),
        ("Tuned values", _tuned(runs)),
        ("What methods see", _sights(runs)),
    ]


def _origins(runs: Sequence[RunRecord]) -> list[str]:
    """Keys under which the weights were found in their files."""
    keys = [(run.result.get("weights_origin") or {}).get("key") for run in runs]
    return [f"read from {key}" for key in dict.fromkeys(keys) if key]


def _rest(group: Group) -> dict[str, Any]:
    return {key: value for key, value in group.protocol.items() if key}


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key.replace('_', ' ')} {value_text(value)}" for key, value in values.items()]


def value_text(value: Any) -> str:
    """Format a configuration value as text; long lists are shortened to their ends and their length."""
    if isinstance(value, list | tuple):
        shown = [*value[:3], "...", f"{value_text(value[-1])} ({len(value)} in all)"] if len(value) > _LONG else value
        return ", ".join(map(value_text, shown))
    if isinstance(value, dict):
        return ", ".join(_pairs(value))
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def _distinct(runs: Iterable[RunRecord], key: str) -> list[str]:
    return sorted({str(run.result[key]) for run in runs if run.result.get(key)}) or ["unknown"]


def _versions(runs: Sequence[RunRecord]) -> list[str]:
    """Versions of each package and of the benchmark's own code, with a note if they differ between runs."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for package, version in (run.result.get("versions") or {}).items():
            found.setdefault(package, set()).add(str(version))
        if code := run.result.get("code_sha256"):
            found.setdefault("code", set()).add(str(code)[:12])
    return [
        f"{package} {', '.join(sorted(versions))}" + (" (differs between runs)" if len(versions) > 1 else "")
        for package, versions in found.items()
    ] or ["unknown"]


def _tuned(runs: Sequence[RunRecord]) -> list[str]:
    """Files of tuned values that runs used, apart from values set on the command line."""
    files = {run.method: run.result["tuned"] for run in runs if run.result.get("tuned")}
    return [f"{method}: {file}" for method, file in files.items()] or ["none"]


def _sights(runs: Sequence[RunRecord]) -> list[str]:
    needs: dict[str, list[str]] = {}
    for run in runs:
        methods = needs.setdefault(str(run.result.get("needs_source", "unknown")), [])
        methods += [run.method] if run.method not in methods else []
    oracles = dict.fromkeys(run.method for run in runs if run.result.get("oracle"))
    return [
        "stream: images only, no labels and no domain names",
        *(f"stream, with an oracle: {method}" for method in oracles),
        *(f"source domain, {need}: {', '.join(methods)}" for need, methods in needs.items()),
    ]
