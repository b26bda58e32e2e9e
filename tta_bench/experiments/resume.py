"""Decide from a run's folder whether the run is finished, resumes or starts over; one process locks the folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tta_bench.callbacks.checkpoint import Resumed
from tta_bench.callbacks.state_files import FORMAT, StateFiles
from tta_bench.config.words import ConfigError
from tta_bench.console import say
from tta_bench.methods.base import TTAMethod
from tta_bench.results.checks import check_run
from tta_bench.results.identity import identity
from tta_bench.results.run_folder import read_result, read_rows

PACKAGE = Path(__file__).parents[1]
# The code behind the numbers: what is shown, what adapts, what intervenes, and what is counted.
DECISIVE = (
    "callbacks", "data", "datasets", "functional", "methods", "models", "results", "streams", "types.py",
    "experiments/run.py", "experiments/source_cache.py", "experiments/source_model.py", "experiments/trainer.py",
)  # fmt: skip

POLL = 2.0  # seconds until a run that another process holds is tried again
_held: set[int] = set()  # locked folders


def code_sha256(method: TTAMethod, package: Path = PACKAGE) -> str:
    """Hash of the code that determines the numbers: that of this package and the files of the method's classes."""
    places = [package / name for name in DECISIVE]
    files = {path for place in places for path in ([place] if place.suffix else place.rglob("*.py")) if path.is_file()}
    for cls in type(method).__mro__:
        top = cls.__module__.partition(".")[0]
        path = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if path and top not in ("tta_bench", "torch", "lightning", *sys.stdlib_module_names):
            files.add(Path(path))
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first few differences, in words; empty if there are none."""
    names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    shown = [f"{name} was {_short(before.get(name))} and is {_short(now.get(name))}" for name in names[:3]]
    return ", ".join([*shown, f"and {len(names) - 3} more"] if len(names) > 3 else shown)


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value).strip('"')
    return text if len(text) <= 40 else f"{text[:12]}..."


def find_finished(folder: Path, mine: Mapping[str, str], title: str, console: Console) -> dict[str, Any] | None:
    """The result of the finished run with this identity, if the folder holds one; prints what it finds."""
    result = read_result(folder)
    if result is None or result.get("status") != "done":
        return None
    StateFiles(folder).delete()  # left by a process that was killed just after it had finished
    if difference := _difference(identity(result), mine):
        say(console, f"{title}: running again, because {difference}", "dim")
        return None
    result = {**result, "folder": str(folder)}
    if wrong := [problem for found in check_run(result).values() for problem in found]:
        say(console, f"{title}: running again, because its files are inconsistent: {wrong[0]}", "dim")
        return None
    say(console, f"{title}: already finished, using its result (resume=never runs it again)", "dim")
    return result


def has_numbers(folder: Path) -> bool:
    """Whether the folder holds the result of a run that finished or was interrupted."""
    return (read_result(folder) or {}).get("status") in ("done", "interrupted")


def find_state(folder: Path, mine: Mapping[str, str], title: str, console: Console) -> Resumed | None:
    """The most recent intact state, with the rows before it; rows beyond it are cut off.

    Raises:
        ConfigError: If the state belongs to another run; the message says what differs.
    """
    files, rows = StateFiles(folder), folder / "batches.csv"
    found, damaged = None, {}
    for path in (files.newest, files.previous):
        try:
            state = files.read(path)
            _refuse_another(state, mine, path)
            found = Resumed(state, read_rows(rows, state["rows_bytes"]))
            if found.step != state["next_step"]:
                raise ValueError(f"{rows} is missing rows")
            break
        except FileNotFoundError:
            continue
        except ConfigError:
            raise
        except ValueError as error:
            found, damaged[path] = None, str(error)
    for path, reason in damaged.items():
        path.unlink()  # otherwise it would replace an intact state at the next write
        say(console, f"{title}: {path.name} cannot be used, {reason}", "dim")
    if found is not None:
        os.truncate(rows, found.state["rows_bytes"])
        say(console, f"{title}: resumed at batch {found.step}{' from the previous state' if damaged else ''}", "dim")
    elif damaged:
        say(console, f"{title}: starting over", "dim")
    return found


def _refuse_another(state: Mapping[str, Any], mine: Mapping[str, str], path: Path) -> None:
    same_format = state["format"] == FORMAT
    before, now = (state["identity"], mine) if same_format else ({"format": state["format"]}, {"format": FORMAT})
    if difference := _difference(before, now):
        raise ConfigError(
            f"{path} belongs to another run ({difference}): start over with resume=never, or move its folder away"
        )


class BusyError(ConfigError):
    """Another process is using a run folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder; the operating system releases the lock when the process ends, however it ends.

    Raises:
        BusyError: If another process has locked it.
    """
    # Not filelock: it locks a file of its own, which would stay in every run folder. The folder can be locked itself.
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"another process is using {folder}: wait until it ends, or choose another output=..."
            ) from error
        except OSError:  # some network file systems have no locks
            pass
        _held.add(handle)
        yield
    finally:
        _held.discard(handle)
        os.close(handle)


def _let_go() -> None:
    """Release the locks, so that a loader process does not keep the folder of a killed run locked."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
