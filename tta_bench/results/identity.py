"""What determines the numbers of a run, and what does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# What does not change a run's numbers is not part of its identity.
NOT_IDENTITY = (
    "output", "cache_dir", "num_workers", "threads", "logger", "resume", "checkpoint_every", "checkpoint_seconds",
)  # fmt: skip


FACTS = ("stream_sha256", "weights_sha256", "code_sha256", "data", "preprocess", "versions")


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
