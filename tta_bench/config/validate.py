"""Check every value of a configuration against the type that its key has: pydantic checks, we say it in a sentence."""

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

MISSING = "???"  # only the user knows it; whoever needs it asks
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
SEED = Annotated[int, Field(ge=0, lt=2**63)]  # what torch takes
TRAINER_KEYS: dict[str, Any] = {
    "accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"],
    # Not 16-true and bf16-true: they would round what methods learn and compare, not only what the network computes.
    "precision": Literal["32-true", "16-mixed", "bf16-mixed", "64-true"],
}
"""Where the Trainer's own types say too little, or allow what a run does not."""
RUN_KEYS: dict[str, Any] = {
    "seed": SEED,
    "output": str,
    "cache_dir": str,
    "config_dir": str | None,
    "num_workers": Count | None,
    "threads": Positive | None,
    "reset": Literal["never", "domain", "first_domain"],
    "forgetting": Count | None,
    "resume": Literal["auto", "never"],
    "checkpoint_every": Positive | None,
    "checkpoint_seconds": Annotated[float, Field(ge=0)] | None,
    "shard": str | None,
}
"""The run's own keys, and those of a launch. Those of a node have the types of its target's signature."""
STREAM_KEYS: dict[str, Any] = {"rounds": Positive, "order": str | list[str] | None}
"""What every setting takes beside the parameters of its kind."""
SAID = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "path_type": "a path",
}
"""What pydantic's kinds of error say is allowed; others say it in their message."""


def validated(config: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration with each number in the form that its key has (1 becomes 1.0 where a float is wanted).

    Args:
        config: Plain values, as ``configs/run.yaml`` or ``configs/stream.yaml`` make them.
        texts: By dotted key, how values were written; where a string is wanted, ``2024`` and ``nan`` are strings.

    Raises:
        ConfigError: If a value is not of its key's type; the message names key, value and what is allowed.
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
    """The value in the form that the type has.

    Args:
        key: Its dotted name, for the message.
        value: A plain value, as JSON has them.
        hint: The type.
        text: How it was written, if a word gave it.

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
        # Values come from words and files, so JSON is the right measure: a list is a tuple, but true is not 1.
        return adapter.dump_python(adapter.validate_json(json.dumps(value), strict=True), mode="json", warnings=False)
    except ValidationError as error:
        raise ConfigError(f"{key} must be {_allowed(error)}; got {value!r}") from error


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
    except NameError:  # a user's class with types that are imported for a type checker only
        return {}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # a type that it does not know, or that checks itself
        return TypeAdapter(Any)


def _allowed(error: ValidationError) -> str:
    said = []
    for one in error.errors(include_url=False):
        if one["type"] == "literal_error":
            text = f"one of {one['ctx']['expected'].replace(' or ', ', ')}".replace("'", "")
        else:
            text = SAID.get(one["type"], one["msg"].removeprefix("Input should be "))
        if one["type"] != "is_instance_of":  # no word stands for an object
            said.append(f"a list with {text} in each place" if any(isinstance(p, int) for p in one["loc"]) else text)
    return " or ".join(dict.fromkeys(said))
