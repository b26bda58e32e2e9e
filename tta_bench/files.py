"""Reads text files of users, and writes files atomically, with one-sentence messages if the disk is full."""

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
    """Read a text file written by any editor, in UTF-8 or, with a byte order mark, UTF-16.

    Byte order marks are removed and line endings become newlines.

    Args:
        path: The file.
        what: Its name in messages.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not text.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} at {path}")
    content = path.read_bytes()
    utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} should be a {what}, but is not a text file in UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, what: str) -> list[str]:
    """Read the non-empty lines of a text file, stripped; otherwise as ``read_text``."""
    return [line.strip() for line in read_text(path, what).split("\n") if line.strip()]


class WriteError(OSError):
    """A file cannot be written; the message is one sentence with the remedy."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context that turns errors of the disk into one-sentence messages.

    Raises:
        WriteError: If the disk is full, the folder is read-only, or similar.
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
    """Free bytes on the disk of a folder, which may not exist yet."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def check_space(folder: Path, needed: int, remedy: str) -> None:
    """Check in advance that there is enough space on the disk.

    Args:
        folder: The output folder.
        needed: Required space in bytes.
        remedy: What the user can do, e.g. "choose another --folder".

    Raises:
        WriteError: If there is not enough space.
    """
    if needed > (free := free_space(folder)):
        raise WriteError(f"this needs {decimal(needed)}, but {folder} has only {decimal(free)} free: {remedy}")


def sync(path: Path) -> int:
    """Wait until a file is completely on the disk; return its size in bytes."""
    with writing(path), path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically: readers see either the old or the new content.

    Raises:
        WriteError: If the file cannot be written.
    """
    draft = path.with_suffix(".tmp")
    with writing(path):
        draft.write_text(json.dumps(content, indent=1) + "\n")
        draft.replace(path)
