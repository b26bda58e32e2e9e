"""Write files so that a reader never sees half of one, and a full disk is one sentence."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
