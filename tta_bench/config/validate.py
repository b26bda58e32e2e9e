"""Validates every value of a configuration against the type of its key with pydantic, with one-sentence messages."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from hydra_zen import get_target
from omegaconf import OmegaConf
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError

from tta_bench.config.words import ConfigError
from tta_bench.streams import KINDS
from tta_bench.suggestions import did_you_mean

MISSING = "???"  # a value that only the user knows
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
SEED = Annotated[int, Field(ge=0, lt=2**63)]  # range of torch
TRAINER_KEYS: dict[str, Any] = {
    "accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"],
    "precision": Literal["32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"],
    "matmul": Literal["highest", "high", "medium"] | None,
}
"""Types of the Trainer's arguments that are more precise or stricter than its annotations."""
RUN_KEYS: dict[str, Any] = {
    "seed": SEED,
    "output": str,
    "cache_dir": str,
    "config_dir": str | None,
    "num_workers": Count | None,
    "threads": Positive | None,
    "reset": Literal["never", "domain", "first_domain"],
    "forgetting": Count | None,
    "label_free": Literal["auto", "always", "never"],
    "save_predictions": Literal["csv", "parquet"] | None,
    "save_adapted": Annotated[str, Field(pattern=r"^(last|every_[1-9]\d*)$")] | None,
    "resume": Literal["auto", "never"],
    "checkpoint_every": Positive | None,
    "checkpoint_seconds": Annotated[float, Field(ge=0)] | None,
    "shard": str | None,
}
"""Types of the keys of a run and a launch; those of a node come from the signature of its target."""
STREAM_KEYS: dict[str, Any] = {"rounds": Positive, "order": str | list[str] | None}
"""Parameters of every setting, besides those of its kind."""
SAID = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "string_pattern_mismatch": "last or every_N, after N batches (labels of the stream may not choose a best)",
    "bool_type": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "path_type": "a path",
}
"""Allowed values by pydantic's error type; other errors have them in their message."""


def validated(config: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Validate a configuration and convert numbers to the types of their keys (1 becomes 1.0 for a float).

    Args:
        config: Plain values, with the structure of ``configs/run.yaml`` or ``configs/stream.yaml``.
        texts: By dotted key, values as written; where a string is expected, ``2024`` and ``nan`` are strings.

    Raises:
        ConfigError: If a value is not of its key's type; the message names key, value and allowed values.
    """
    texts = texts or {}
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("logger", "callbacks"):
            found[key] = {name: _node(f"{key}.{name}", node, texts) for name, node in value.items()}
        elif isinstance(value, Mapping):
            found[key] = _node(key, value, texts)
        else:
            found[key] = check(key, value, RUN_KEYS.get(key, Any), texts.get(key))
    return found


def check(key: str, value: Any, hint: Any, text: str | None = None) -> Any:
    """Validate a value and convert it to its type.

    Args:
        key: Its dotted name, for the message.
        value: A plain value, as in JSON.
        hint: The type.
        text: The value as written, if it comes from an override.

    Raises:
        ConfigError: If the value is not of the type.
    """
    if value == MISSING:
        return value
    adapter = _adapter(hint)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and text is not None and not _takes(adapter, value) and _takes(adapter, text):
        value = text
    try:
        # Values come from overrides and files, so JSON's rules apply: a list may be a tuple, but true is not 1.
        return adapter.dump_python(adapter.validate_json(json.dumps(value), strict=True), mode="json", warnings=False)
    except ValidationError as error:
        raise ConfigError(f"{key} must be {_allowed(error)}; got {value!r}{_nearest(error)}") from error


def _takes(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


def _node(place: str, node: Any, texts: Mapping[str, str]) -> Any:
    if not isinstance(node, Mapping):
        return node
    hints = _hints_of(place, node)
    return {
        key: check(f"{place}.{key}", value, hints.get(key, Any), texts.get(f"{place}.{key}"))
        for key, value in node.items()
    }


def _hints_of(place: str, node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The types of a node's keys."""
    if place == "setting":
        kind = KINDS.get(str(node.get("kind")))
        return STREAM_KEYS if kind is None else {**_hints(kind), **STREAM_KEYS}
    if place == "trainer":
        from lightning.pytorch import Trainer

        return {**_hints(Trainer), **TRAINER_KEYS}
    return _hints(get_target(OmegaConf.create(dict(node)))) if "_target_" in node else {}


@cache
def _hints(target: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except NameError:  # a user's class with types that are imported only for type checking
        return {}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # a type that pydantic does not support
        return TypeAdapter(Any)


def _allowed(error: ValidationError) -> str:
    said = []
    for one in error.errors(include_url=False):
        if one["type"] == "literal_error":
            text = f"one of {', '.join(_choices(one))}"
        else:
            text = SAID.get(one["type"], one["msg"].removeprefix("Input should be "))
        if one["type"] != "is_instance_of":  # objects cannot be given as overrides
            said.append(f"a list, each item {text}" if any(isinstance(p, int) for p in one["loc"]) else text)
    return " or ".join(dict.fromkeys(said))


def _nearest(error: ValidationError) -> str:
    """The word of a list of words that was meant, if one is near."""
    wrong = [one for one in error.errors(include_url=False) if one["type"] == "literal_error"]
    return did_you_mean(wrong[0]["input"], (), more=_choices(wrong[0])) if wrong else ""


def _choices(literal_error: Mapping[str, Any]) -> list[str]:
    return literal_error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
