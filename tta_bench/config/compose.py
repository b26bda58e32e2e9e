"""Composes the configuration of a run from command-line overrides, with clear messages for wrong ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from hydra_zen import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tta_bench.config.launch import KEYS, Launch, Shard
from tta_bench.config.registry import (
    USUAL,
    config_folder,
    register_all,
    register_classes,
    register_light,
)
from tta_bench.config.user_folder import search_first, user_folder
from tta_bench.config.validate import validated
from tta_bench.config.words import GROUPS, ConfigError, Override, Words, read_words, value_of
from tta_bench.suggestions import did_you_mean

__all__ = [
    "GROUPS",
    "Composed",
    "build",
    "compose_launch",
    "compose_run",
    "compose_runs",
    "compose_stream",
    "options",
    "plain",
    "require",
]


@dataclass(frozen=True)
class Composed:
    """A run's configuration, the chosen option of each group, and the user's overrides.

    Attributes:
        config: The configuration.
        choices: The option of each group.
        words: The user's overrides.
        tuned: The file of tuned values in use, relative to its configuration folder; None if there is none.
    """

    config: DictConfig
    choices: dict[str, str]
    words: tuple[Override, ...] = ()
    tuned: str | None = None

    @property
    def title(self) -> str:
        """Method and seed, for messages."""
        return f"{self.choices['method']} seed {self.config.seed}"


def compose_run(words: Words) -> Composed:
    """Compose ``configs/run.yaml`` with overrides such as ``method=tent`` and ``method.lr=0.01``.

    Raises:
        ConfigError: If an override has an unknown key or option, or a value of the wrong type.
    """
    return compose_runs([words])[0]


def compose_runs(runs: Iterable[Words]) -> list[Composed]:
    """Compose several runs; equal choices of options are composed only once.

    Raises:
        ConfigError: As :func:`compose_run`.
    """
    register_all()
    known: dict[tuple[Any, ...], Composed] = {}
    found = []
    for words in runs:
        overrides = read_words(words)
        for word in overrides:
            if word.key.partition(".")[0] in KEYS:
                raise ConfigError(f"{word} is for several runs: bench, reproduce and tune take it")
        found.append(_compose("run", [*_usual(overrides), *register_classes(overrides)], overrides, known))
    return found


def compose_stream(words: Words) -> Composed:
    """Compose ``configs/stream.yaml``, the part of a run that determines its stream, without importing torch.

    Raises:
        ConfigError: As :func:`compose_run`.
    """
    register_light()
    overrides = read_words(words)
    usual = [word for word in _usual(overrides) if word.key != "model"]
    return _compose("stream", [*usual, *overrides], overrides, {})


def compose_launch(words: Words) -> tuple[Launch, tuple[Override, ...]]:
    """Compose ``configs/launch.yaml`` with the overrides that belong to it.

    Returns:
        How the runs are started, and the overrides of the runs.

    Raises:
        ConfigError: As :func:`compose_run`.
    """
    register_light()
    overrides = read_words(words)
    own = [word for word in overrides if word.key.partition(".")[0] in KEYS]
    rest = tuple(word for word in overrides if word not in own)
    in_folder = [word for word in overrides if word.key == "config_dir"]
    config = _compose("launch", own, (), {}, user_folder(in_folder)).config
    shard = None if config.shard is None else Shard.read(config.shard)
    return Launch(build(config.launcher), shard), rest


def _usual(overrides: Sequence[Override]) -> list[Override]:
    """Default overrides of a data set, unless the user overrides them."""
    given = {word.key for word in overrides}
    usual = read_words(USUAL.get(str(value_of(overrides, "dataset")), ()))
    return [word for word in usual if word.key not in given]


def options(group: str, folder: Path | None = None) -> list[str]:
    """Names that ``<group>=`` takes.

    Args:
        group: The group.
        folder: The user's configuration folder; None uses that of the environment.
    """
    stored = {str(name).removesuffix(".yaml") for name in ConfigStore.instance().repo.get(group, {})}
    folders = [config_folder(), folder or user_folder(())]
    return sorted(stored | {path.stem for home in folders if home for path in (home / group).glob("*.yaml")})


def _compose(
    name: str,
    overrides: Sequence[Override],
    words: tuple[Override, ...],
    known: dict[tuple[Any, ...], Composed],
    folder: Path | None = None,
) -> Composed:
    folder = folder or user_folder(overrides)
    chosen = {word.key: word for word in overrides if word.chooses}
    for word in chosen.values():
        _check_options(word, folder)
    key = (folder, *chosen.values())
    if key not in known:
        known[key] = _put_together(name, list(chosen.values()), folder)
    base = known[key]
    config = copy.deepcopy(base.config)
    for word in overrides:
        if not word.chooses:
            _set(config, word)
    try:
        values = plain(config)
    except OmegaConfBaseException as error:
        raise ConfigError(_reason(error)) from error
    texts = {word.key: word.text for word in overrides}
    return Composed(OmegaConf.create(validated(values, texts)), base.choices, words, base.tuned)


def _put_together(name: str, chosen: Sequence[Override], folder: Path | None) -> Composed:
    """Let Hydra compose the files and classes of the chosen options."""
    GlobalHydra.instance().clear()
    try:
        with search_first(folder), initialize_config_dir(str(config_folder()), version_base="1.3"):
            composed = compose(name, overrides=[str(word) for word in chosen], return_hydra_config=True)
        choices = {k: v for k, v in composed.hydra.runtime.choices.items() if k in GROUPS and v is not None}
        content = OmegaConf.to_container(OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"]))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_reason(error)) from error
    return Composed(OmegaConf.create(content), choices, tuned=_tuned_file(choices, folder))


def _check_options(word: Override, folder: Path | None) -> None:
    group, known = word.key, options(word.key, folder)
    for option in word.value if isinstance(word.value, list) and group in ("logger", "callbacks") else [word.value]:
        if str(option) not in known:
            raise ConfigError(f"there is no {group} {option!r}{did_you_mean(str(option), known)}")


def _tuned_file(choices: dict[str, str], folder: Path | None) -> str | None:
    """Return the file of tuned values that was read.

    Raises:
        ConfigError: If it contains anything but values of its method.
    """
    name = f"tuned/{choices.get('tuned', 'off')}.yaml"
    for home in (folder, config_folder()):
        if home and name != "tuned/off.yaml" and (home / name).is_file():
            others = sorted(set(map(str, OmegaConf.load(home / name))) - {"method"})
            if others:
                raise ConfigError(
                    f"{home / name} sets {others[0]}: a file of tuned values may contain only keys of its method, "
                    "below method:"
                )
            return name if home == config_folder() else str(home / name)
    return None


def _set(config: DictConfig, word: Override) -> None:
    """Change the value of an existing key.

    Raises:
        ConfigError: If the key does not exist.
    """
    node: Any = config
    parts = word.key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, DictConfig) or part not in list(node):  # a missing value is not a missing key
            raise ConfigError(_unknown_key(config, node, parts, depth))
        if depth < len(parts) - 1:
            node = None if OmegaConf.is_missing(node, part) else node[part]
    OmegaConf.update(config, word.key, word.value, merge=True)


def _unknown_key(config: DictConfig, node: Any, parts: Sequence[str], depth: int) -> str:
    here, key = ".".join(parts[:depth]), ".".join(parts)
    known = [str(k) for k in node if not str(k).startswith("_")] if isinstance(node, DictConfig) else []
    if deeper := [f"{here}.{name}.{parts[-1]}" for name in known if parts[-1] in _keys(node, name)]:
        return f"there is no key {key!r}; did you mean {deeper[0]!r}?"
    if depth == 1 and parts[0] in ("logger", "callbacks"):
        chosen = f"this run has {parts[0]}=[{','.join(known)}]" if known else f"this run has no {parts[0]}"
        return f"there is no key {key!r}: {chosen}; write {parts[0]}.<name>.<key>=..., as in logger.wandb.project=mine"
    hint = did_you_mean(parts[depth], known, listed=f"keys of {here or 'a run'} are", prefix=f"{here}." if here else "")
    return f"there is no key {key!r}{hint}"


def _keys(node: DictConfig, name: str) -> list[str]:
    child = None if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name) else node[name]
    return [str(key) for key in child] if isinstance(child, DictConfig) else []


def _reason(error: BaseException) -> str:
    """The first line of the innermost message, with its key."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    key = re.search(r"full_key: (\S+)", text)
    return f"{key.group(1)}: {text.splitlines()[0]}" if key else text.splitlines()[0]


def build(node: DictConfig, **more: Any) -> Any:
    """Instantiate a node; errors are raised as they are, without Hydra's wrapping.

    Args:
        node: The node, with its ``_target_``.
        more: Further arguments of the target.
    """
    try:
        return instantiate(node, **more)
    except InstantiationException as error:
        raise error.__cause__ or error from None


def plain(config: DictConfig | ListConfig) -> dict[str, Any]:
    """Convert a configuration to plain values, including private keys such as ``_partial_``."""
    return OmegaConf.to_container(config, resolve=True)


def require(config: DictConfig) -> None:
    """Check that all values that only the user knows are set.

    Raises:
        ConfigError: If one is missing; the message names it.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"{missing[0]} has no value: set it, for example {missing[0]}=...")
