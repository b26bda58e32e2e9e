"""Compose a run's configuration from the words of a command line, and say clearly what is wrong with them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from hydra_zen import get_target, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tta_bench.config.registry import (
    SEGMENTATION,
    config_folder,
    import_class,
    register_all,
    register_light,
    register_method,
)
from tta_bench.config.words import ConfigError, dataset_of, read_word

# A run's own whole numbers and their smallest values.
LEAST = {"seed": 0, "num_workers": 0, "threads": 1, "checkpoint_every": 1, "checkpoint_seconds": 0, "forgetting": 0}
# A run's own choices; the first is the default.
CHOICES = {"resume": ("auto", "never"), "reset": ("never", "domain")}
GROUPS = ("setting", "dataset", "model", "trainer", "logger", "method", "tuned")


@dataclass(frozen=True)
class Composed:
    """A run's configuration, the names that were chosen in each group, and the words that say so."""

    config: DictConfig
    choices: dict[str, str]
    words: tuple[str, ...] = ()


def compose_run(overrides: Sequence[str]) -> Composed:
    """Compose ``configs/run.yaml`` with overrides such as ``method=tent`` and ``method.lr=0.01``.

    Raises:
        ConfigError: If an override names a key or an option that does not exist, or has the wrong type.
    """
    register_all()
    words = [*_usual(overrides), *_resolve_class(list(overrides))]
    return replace(_compose("run", words), words=tuple(overrides))


def compose_stream(overrides: Sequence[str]) -> Composed:
    """Compose ``configs/stream.yaml``, the part of a run that a stream depends on. Does not import torch.

    Raises:
        ConfigError: As :func:`compose_run`.
    """
    register_light()
    usual = [word for word in _usual(overrides) if not word.startswith("model=")]
    return _compose("stream", [*usual, *overrides])


def _usual(overrides: Sequence[str]) -> list[str]:
    """What a data set stands for, as far as the words do not say otherwise."""
    given = {word.partition("=")[0] for word in overrides}
    return [word for word in SEGMENTATION.get(dataset_of(overrides) or "", ()) if word.partition("=")[0] not in given]


def options(group: str) -> list[str]:
    """The names that ``<group>=`` takes."""
    stored = ConfigStore.instance().repo.get(group, {})
    names = {str(name).removesuffix(".yaml") for name in stored}
    return sorted(names | {p.stem for p in (config_folder() / group).glob("*.yaml")})


def _resolve_class(overrides: list[str]) -> list[str]:
    """``method._target_=pkg.Class`` becomes an option of its own, with the keys of that class."""
    for i, word in enumerate(overrides):
        key, _, value = word.partition("=")
        if key == "method._target_" or (key == "method" and "." in value):
            cls = import_class(value)
            register_method(cls.__name__, cls)
            rest = [w for w in overrides[:i] + overrides[i + 1 :] if not w.startswith("method=")]
            return [f"method={cls.__name__}", *rest]
    return overrides


def _compose(name: str, overrides: list[str]) -> Composed:
    for word in overrides:
        read_word(word)
    chosen = [word for word in overrides if word.partition("=")[0] in GROUPS]
    values = [word for word in overrides if word not in chosen]
    for word in chosen:
        group, _, option = word.partition("=")
        if option not in options(group):
            raise ConfigError(f"there is no {group} {option!r}{_nearest(option, options(group), 'choose from')}")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        default = _hydra(name, chosen)
        for word in values:
            _check_key(word, default.config)
        composed = _hydra(name, overrides) if values else default
    _check_numbers(composed.config)
    _check_choices(composed.config)
    return composed


def _hydra(name: str, overrides: list[str]) -> Composed:
    try:
        composed = compose(name, overrides=overrides, return_hydra_config=True)
        choices = {k: v for k, v in composed.hydra.runtime.choices.items() if k in GROUPS and v is not None}
        config = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_reason(error)) from error
    return Composed(config, choices)


def _check_key(word: str, config: DictConfig) -> None:
    path = word.partition("=")[0]
    if path.startswith(("+", "~")):
        raise ConfigError(f"{word!r}: keys cannot be added or removed, only set")
    node: Any = config
    parts = path.split(".")
    for depth, part in enumerate(parts):
        child = node._get_node(part, validate_access=False) if isinstance(node, DictConfig) else None
        if child is None:
            here = ".".join(parts[:depth])
            known = [str(k) for k in node if not str(k).startswith("_")] if isinstance(node, DictConfig) else []
            prefix = f"{here}." if here else ""
            hint = _nearest(part, known, f"keys of {here or 'a run'} are", prefix)
            raise ConfigError(f"there is no key {path!r}{hint}")
        node = child


def _check_numbers(config: DictConfig) -> None:
    for key, least in LEAST.items():
        value = config.get(key)
        if value is None and key != "seed":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{key} must be a whole number from {least} on, got {value!r}")


def _check_choices(config: DictConfig) -> None:
    """Check ``Literal`` annotations of classes and functions, a type that OmegaConf does not know, and a run's own."""
    for key, choices in CHOICES.items():
        if config.get(key, choices[0]) not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(choices)}; got {config[key]!r}")
    for group, node in config.items():
        if not isinstance(node, DictConfig) or "_target_" not in node:
            continue
        target = get_target(node)
        for key, hint in get_type_hints(target.__init__ if inspect.isclass(target) else target).items():
            if get_origin(hint) is Literal and key in node and node[key] not in get_args(hint):
                known = ", ".join(map(str, get_args(hint)))
                raise ConfigError(f"{group}.{key} must be one of {known}; got {node[key]!r}")


def _nearest(word: str, known: Sequence[str], introduction: str, prefix: str = "") -> str:
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"; did you mean {prefix + near[0]!r}?" if near else ";"
    return f"{hint} {introduction}: {', '.join(known)}" if known else ""


def _reason(error: Exception) -> str:
    """The first line of the innermost message, with the key it is about."""
    while error.__cause__ is not None:
        error = error.__cause__  # type: ignore[assignment]  # what libraries raise here are Exceptions
    text = str(error)
    key = re.search(r"full_key: (\S+)", text)
    return f"{key.group(1)}: {text.splitlines()[0]}" if key else text.splitlines()[0]


def build(node: DictConfig) -> Any:
    """Make what a node describes; a mistake in it comes out as the error itself, not as Hydra's account of it."""
    try:
        return instantiate(node)
    except InstantiationException as error:
        raise error.__cause__ or error from None


def plain(config: DictConfig | ListConfig) -> dict[str, Any]:
    """The configuration as plain values, private keys (such as ``_partial_``) kept."""
    return OmegaConf.to_container(config, resolve=True)


def require(config: DictConfig) -> None:
    """Refuse a configuration with values that only the user knows.

    Raises:
        ConfigError: If one is missing; the message says which.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"{missing[0]} has no value: give it, for example {missing[0]}=...")
