"""The identity of a run: everything that determines its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

NOT_IDENTITY: Mapping[str, str] = {
    "output": "only where the run is stored",
    "config_dir": "its values are in the configuration itself",
    "cache_dir": "only where source statistics are stored, under a key of everything they depend on",
    "num_workers": "worker processes keep the order of the stream",
    "threads": "changes only the order of sums, and thus rounding",
    "logger": "loggers only receive numbers",
    "resume": "a resumed run has the same numbers as an uninterrupted one",
    "checkpoint_every": "when a state is written",
    "checkpoint_seconds": "when a state is written",
}
"""The keys of a configuration that do not change a run's numbers, each with the reason; all others are its identity."""

FACTS = ("stream_sha256", "weights_sha256", "code_sha256", "data", "preprocess", "versions")


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash, in eight hex digits, of the part of a configuration that determines the numbers of its run."""
    decisive = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]


def identity(result: Mapping[str, Any], **more: Any) -> dict[str, str]:
    """Everything that determines a run's numbers, by dotted name, from ``result.json`` before the run starts."""
    config = {key: value for key, value in result["config"].items() if key not in NOT_IDENTITY}
    return dict(_flat({**config, **{key: result.get(key) for key in FACTS}, **more}))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)
