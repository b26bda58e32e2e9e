"""What determines the numbers of a run, and what does not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

NOT_IDENTITY: Mapping[str, str] = {
    "output": "where a run lies",
    "config_dir": "the values that it holds are in the configuration themselves",
    "cache_dir": "where what is learned of the source lies, under a key of all that it depends on",
    "num_workers": "loader processes keep the order of the stream",
    "threads": "sums in another order, so rounding only",
    "logger": "loggers are told, they tell nothing",
    "resume": "a run that goes on ends with the numbers of one that was never interrupted",
    "checkpoint_every": "when a state is written",
    "checkpoint_seconds": "when a state is written",
}
"""The keys of a configuration that do not change a run's numbers, each with the reason; all others are its identity."""

FACTS = ("stream_sha256", "weights_sha256", "code_sha256", "data", "preprocess", "versions")


def config_hash(config: Mapping[str, Any]) -> str:
    """Eight hex digits over all of a configuration that determines the numbers of its run."""
    decisive = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]


def identity(result: Mapping[str, Any], **more: Any) -> dict[str, str]:
    """All that determines a run's numbers, by dotted name, from what ``result.json`` holds before the run starts."""
    config = {key: value for key, value in result["config"].items() if key not in NOT_IDENTITY}
    return dict(_flat({**config, **{key: result.get(key) for key in FACTS}, **more}))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)
