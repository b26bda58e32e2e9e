"""Read a user's text files; write files so that no reader sees half of one and a full disk is one sentence."""

from __future__ import annotations

import codecs
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.filesize import decimal

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def existing(key: str, path: str | Path, kind: Literal["file", "folder"] | None = None) -> Path:
    """The path of something that the user has named, which must be there.

    Args:
        key: The configuration key or option that names it, for messages.
        path: The path; a leading ``~`` stands for the home folder.
        kind: What it must be; None takes both.

    Raises:
        FileNotFoundError: If it does not exist.
        ValueError: If it is a file instead of a folder, or the other way round.
    """
    found = Path(path).expanduser()
    if not found.exists():
        where = "" if found.is_absolute() else f" in {Path.cwd()}"
        raise FileNotFoundError(f"{key}={path} does not exist{where}")
    if kind is not None and found.is_dir() != (kind == "folder"):
        raise ValueError(f"{key}={path} must be a {kind}")
    return found


def read_text(path: Path, what: str) -> str:
    """What a user has written into a text file, whatever editor it was: UTF-8 or, with its mark, UTF-16.

    Byte order marks are dropped and line ends become newlines.

    Args:
        path: The file.
        what: What it is, for messages.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no text.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} at {path}")
    content = path.read_bytes()
    utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text file in UTF-8, as a {what} should be") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a text file, without blanks around them and without empty ones; the rest is as for ``read_text``."""
    return [line.strip() for line in read_text(path, what).split("\n") if line.strip()]


class WriteError(OSError):
    """The disk does not take what a run writes; the message is one sentence with the remedy."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one sentence what could not be written.

    Raises:
        WriteError: If the disk is full, the folder is read-only and the like.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        remedy = "free some space" if error.errno in FULL else "make it writable or choose another output=..."
        message = f"cannot write {path} ({error.strerror or error}): {remedy}, then run the same command again"
        raise WriteError(message) from error


def free_space(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def check_space(folder: Path, needed: int, remedy: str) -> None:
    """Refuse early what does not fit on the disk.

    Args:
        folder: Where it is to be written.
        needed: Its size in bytes.
        remedy: What the user can do, e.g. "choose another --folder".

    Raises:
        WriteError: If there is not enough space.
    """
    if needed > (free := free_space(folder)):
        raise WriteError(f"this needs {decimal(needed)} and {folder} has {decimal(free)} free: {remedy}")


def sync(path: Path) -> int:
    """Wait until all of a file is on the disk; its size in bytes."""
    with writing(path), path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file in one step: a reader sees the old content or the new one, never a half.

    Raises:
        WriteError: If the disk does not take it.
    """
    draft = path.with_suffix(".tmp")
    with writing(path):
        draft.write_text(json.dumps(content, indent=1) + "\n")
        draft.replace(path)
