"""Name, group and configuration of a run in Weights & Biases, all derived from ``result.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tta_bench.report.groups import Group, entry_key, protocol_key
from tta_bench.report.runs import Result, RunRecord

CONFIG = (
    "schema", "method", "setting", "dataset", "model", "seed", "prediction_timing", "needs_source", "oracle", "paper",
    "tuned", "domains", "stream_sha256", "weights_sha256", "weights_origin", "code_sha256", "preprocess", "data",
    "config", "versions", "started",
)  # fmt: skip
SUMMARY = (
    "status", "mean_error", "sample_error", "mean_iou", "pooled_iou", "ece", "top_class_share", "forward_per_sample",
    "backward_per_sample", "coreset_size", "seconds", "seconds_per_batch_median", "peak_memory_bytes",
    "trainable_parameters", "extra_parameters", "revisit_change", "recovery_batches", "forgetting",
)  # fmt: skip
RUN_FOLDER = "run_folder.zip"
"""Archive of the run folder among the files of a W&B run; plain copies would be mistaken for runs of their own."""


def run_name(result: Result) -> str:
    """Method and seed."""
    return f"{result['method']}-seed{result['seed']}"


def group_name(result: Result) -> str:
    """Data set, setting and stream, which all runs of a group share."""
    return f"{result['dataset']}/{result['setting']}/{result['stream_sha256'][:12]}"


def config_of(result: Result) -> dict[str, Any]:
    """The configuration of the W&B run.

    Besides everything that determines the numbers, it contains keys by which W&B can group and filter: ``protocol`` is
    the same for runs that may be compared, and ``entry`` for runs that may be averaged, since they differ only in their
    stream.
    """
    run = RunRecord(result)
    known = {key: result[key] for key in CONFIG if key in result}
    entry = f"{result['method']}-{_digest(entry_key(run))[:8]}"
    return {**known, "protocol": _digest(protocol_key(run))[:12], "entry": entry}


def comparison_name(group: Group) -> str:
    """W&B group of a group's comparison: that of its runs if they share one stream, else named by its protocol."""
    names = {group_name(run.result) for run in group.runs}
    dataset, setting, _ = group.protocol[""]
    return names.pop() if len(names) == 1 else f"{dataset}/{setting}/{protocol_of_group(group)}"


def protocol_of_group(group: Group) -> str:
    """Twelve digits of the group's protocol, the same as for its runs unless these differ in their stream."""
    return _digest(group.protocol)[:12]


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
