"""Finds the state dict in a file of weights that fits a network, without ever running code from the file."""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tta_bench.suggestions import did_you_mean

AVERAGED = ("state_dict_ema", "model_ema")  # preferred by timm's own loader, in this order
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # torch.save writes the names of pickle protocol 2
_DEPTH = 4  # nesting depth of mappings to search
_SHOWN = 3  # names of each kind in a message


class Origin(NamedTuple):
    """Where in a file the weights were found."""

    key: str | None  # key of the state dict, dotted if nested; None if the file is the state dict
    prefix: str  # prefix that all names in the file have and the network's names lack
    also_fits: list[str]  # keys of other state dicts that also fit


Convert = Callable[[dict[str, Tensor]], dict[str, Tensor] | None]


def load_weights(network: nn.Module, path: Path, key: str | None = None, convert: Convert | None = None) -> Origin:
    """Load the state dict in a file that fits the network strictly: no weights may be missing or left over.

    A prefix that all names share (``module.``, ``_orig_mod.``, ``model.``, ...) is stripped, floating-point values
    become float32, and batch norm counters, on which no score depends, may be missing. If several state dicts fit, an
    averaged one (``state_dict_ema``, ``model_ema``) is loaded, as in timm's own loader.

    Args:
        network: Network to load the weights into.
        path: A .safetensors file, or a file of ``torch.save``, which may contain other objects beside the tensors:
            they are neither imported nor called.
        key: Key of the state dict in the file; None finds one that fits.
        convert: Converts a state dict whose names do not fit to the network's own names, or returns None.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it cannot be read, no state dict in it fits, or several do and no convention decides.
    """
    expected = network.state_dict()
    loaded = _read(path)
    found = {name: _Fit.of(state, expected) for name, state in _state_dicts(loaded)}
    if not found:
        raise ValueError(f"{path} holds no state dict of tensors, only {_contents(loaded)}: save model.state_dict()")
    if key is not None:
        if key not in found:
            hint = did_you_mean(key, (), more=list(found))
            raise ValueError(f"{path} has no state dict model.checkpoint_key={key}; it has {_keys(found)}{hint}")
        found = {key: found[key]}
    fitting = {name: fit for name, fit in found.items() if not fit.problems}
    if not fitting and convert is not None:
        fitting = dict(_converted(found, expected, convert))
    best = _choose(path, found, fitting)
    network.load_state_dict(fitting[best].state)
    return Origin(best or None, fitting[best].prefix, [name for name in fitting if name != best])


class _Fit(NamedTuple):
    state: dict[str, Any]  # under the network's names, in float32
    prefix: str
    problems: str
    shared: int  # number of names that the network has as well

    @classmethod
    def of(cls, state: Mapping[str, Any], expected: Mapping[str, Tensor]) -> _Fit:
        first = next(iter(state))
        heads = ["", *(first[: place + 1] for place, letter in enumerate(first) if letter == ".")]
        prefixes = [head for head in heads if all(name.startswith(head) for name in state)]
        # The longest common prefix may be too long: if a network consists only of blocks, "blocks." belongs to it.
        shared = {prefix: sum(name[len(prefix) :] in expected for name in state) for prefix in prefixes}
        prefix = max(prefixes, key=shared.__getitem__)
        # Files from before torch 0.4.1 lack the counters of batch norm.
        counters = {name: value for name, value in expected.items() if name.endswith(".num_batches_tracked")}
        renamed = {name[len(prefix) :]: _single(value) for name, value in state.items()}
        problems = _problems({**counters, **renamed}, expected)
        if problems and prefixes[-1]:
            without = "without" if prefix else "with or without"
            problems += f" ({without} the prefix {prefix or prefixes[-1]!r} that all its names share)"
        return cls({**counters, **renamed}, prefix, problems, shared[prefix])


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _problems(state: Mapping[str, Any], expected: Mapping[str, Tensor]) -> str:
    """Describe how a state dict differs from the network's, with a few names of each kind; empty if it fits."""
    both = [name for name in expected if name in state]
    shapes = {name: tuple(state[name].shape) for name in both if isinstance(state[name], Tensor)}
    kinds = {
        "missing ": [name for name in expected if name not in state],
        "unexpected ": [name for name in state if name not in expected],
        "": [f"{name} is a {_kind(state[name])} instead of a tensor" for name in both if name not in shapes]
        + [
            f"{name} has shape {shape} where the model has {tuple(expected[name].shape)}"
            for name, shape in shapes.items()
            if shape != tuple(expected[name].shape)
        ],
    }
    told = "; ".join(kind + _few(names) for kind, names in kinds.items() if names)
    outputs = {
        (shape[:1], tuple(expected[name].shape[:1]), shape[1:] == tuple(expected[name].shape[1:]))
        for name, shape in shapes.items()
        if shape != tuple(expected[name].shape)
    }
    if len(outputs) == 1 and not any(kinds[kind] for kind in ("missing ", "unexpected ")):
        ((theirs, ours, rest),) = outputs
        if rest and theirs and ours:  # a layer without successors
            told += (
                f"; the weights have {theirs[0]} classes and the model has {ours[0]}: "
                f"set num_classes: {theirs[0]} in model.config, or use weights for {ours[0]} classes"
            )
    return told


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _keys(names: Mapping[str, Any]) -> str:
    return ", ".join(name or "one without a key" for name in names)


def _choose(path: Path, found: Mapping[str, _Fit], fitting: Mapping[str, _Fit]) -> str:
    """Return the key of the state dict to load.

    Raises:
        ValueError: If none fits, or several do and no convention decides.
    """
    nearest = max(found, key=lambda name: (found[name].shared, len(found[name].state)))
    if not fitting:
        within = f"{nearest} in " if nearest else ""
        raise ValueError(f"{within}{path} does not fit the model: {found[nearest].problems}")
    for name in AVERAGED:
        for known in found:
            if known.rpartition(".")[2] == name:
                if known in fitting:
                    return known
                raise ValueError(
                    f"{known} in {path}, the averaged weights, does not fit the model: {found[known].problems}; "
                    f"model.checkpoint_key={next(iter(fitting))} loads those that fit"
                )
    first, *others = fitting
    if any(not _same(fitting[first].state, fitting[name].state) for name in others):
        raise ValueError(
            f"{path} holds several state dicts that fit the model ({_keys(fitting)}): choose one, "
            f"for example model.checkpoint_key={others[-1]}"
        )
    return first


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def _converted(
    found: Mapping[str, _Fit], expected: Mapping[str, Tensor], convert: Convert
) -> Iterator[tuple[str, _Fit]]:
    for name, fit in found.items():
        if not all(isinstance(value, Tensor) for value in fit.state.values()):
            continue
        if set(fit.state) == set(expected):  # only the shapes differ: a conversion would silently resample
            continue
        if (state := convert({name.removeprefix("module."): value for name, value in fit.state.items()})) is not None:
            yield name, fit._replace(state=state, problems="")


def _state_dicts(loaded: Any, key: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Find all mappings from names to tensors, with their dotted keys."""
    if not depth or not isinstance(loaded, Mapping) or not all(isinstance(name, str) for name in loaded):
        return
    if any(isinstance(value, Tensor) for value in loaded.values()):
        yield key, loaded
    for name, value in loaded.items():
        yield from _state_dicts(value, f"{key}.{name}" if key else name, depth - 1)


class _Inert:
    """Placeholder for objects in a file that are not tensors: accepts any arguments and any state, and does nothing."""

    def __new__(cls, *args: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _contents(loaded: Any) -> str:
    if not isinstance(loaded, Mapping) or not loaded:
        return f"a {_kind(loaded)}"
    return _few([f"{name} ({_kind(value)})" for name, value in loaded.items()])


def _read(path: Path) -> Any:
    """Read a file; objects that are neither tensors nor plain values become inert placeholders.

    Raises:
        FileNotFoundError: If it does not exist.
        ValueError: If it cannot be read.
    """
    names: list[str] = []
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        names = sorted(_names(path))
        inert: list[Any] = [(_inert(name), name) for name in names]  # known types keep their meaning: torch's go first
        with torch.serialization.safe_globals(inert):
            return torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # the readers raise nearly anything for a damaged or foreign file
        foreign = [name for name in names if name.partition(".")[0] not in ("torch", "collections", "_codecs")]
        beside = f" (it refers to {_few(foreign)})" if foreign else ""
        raise ValueError(
            f"{path} is not a readable checkpoint of tensors only{beside}: save model.state_dict()"
        ) from error


def _inert(name: str) -> type[_Inert]:
    module, _, last = name.rpartition(".")
    return type(last, (_Inert,), {"__module__": module})


def _names(path: Path) -> set[str]:
    """Dotted names of all classes and functions that a file of ``torch.save`` refers to, without importing them."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickles, file = 1, io.BytesIO(archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl"))))
    else:  # before torch 1.6, a magic number, a version and facts about the machine precede the object
        pickles, file = 4, io.BytesIO(path.read_bytes())
    named = [
        str(argument).partition(" ")
        for _ in range(pickles)
        for code, argument, _ in pickletools.genops(file)
        if code.name == "GLOBAL"
    ]
    return {f"{_PYTHON_2.get(module, module)}.{name}" for module, _, name in named}
