"""What goes along to other machines: the user's modules; and whether the code there is the same."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from hydra_zen import get_target

from tta_bench.config.compose import Composed
from tta_bench.config.words import value_of

PACKAGE = Path(__file__).parents[2]


@cache
def package_sha256() -> str:
    """Hash of all of this package's code."""
    files = sorted(PACKAGE.rglob("*.py"))
    content = [f"{path.relative_to(PACKAGE)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def user_files(jobs: Sequence[Composed]) -> dict[str, bytes]:
    """The modules of the user's classes, and those beside them that they import, by their paths for ``sys.path``.

    Installed packages do not go along: they have to be installed everywhere.
    """
    roots = {root for name in _named(jobs) if (root := _root(name)) is not None}
    found = {}
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "")
        if path.suffix != ".py" or path.is_relative_to(PACKAGE) or _is_installed(path):
            continue
        for root in roots:
            if path.is_relative_to(root):
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def write_user_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Make the modules importable here."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sys.path.insert(0, str(folder))


def _named(jobs: Sequence[Composed]) -> set[str]:
    """The modules of the methods, and those that words name by their path."""
    names = {get_target(job.config.method).__module__ for job in jobs}
    for job in jobs:
        for group in ("logger", "callbacks"):
            value = value_of(job.words, group)
            names |= {str(item).rpartition(".")[0] for item in (value if isinstance(value, list) else [value])}
    return names


def _root(name: str) -> Path | None:
    """The folder from which a module of the user's was imported."""
    module = sys.modules.get(name)
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py" or path.is_relative_to(PACKAGE) or _is_installed(path):
        return None
    return path.parents[len(name.split(".")) - (path.stem != "__init__")]


def _is_installed(path: Path) -> bool:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(place) for place in places)
