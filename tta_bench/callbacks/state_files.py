"""The two most recent states of a run on disk, written so that the process can be killed at any time."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from tta_bench.files import writing

FORMAT = 1  # of a state file; a state of another format is refused


class DamagedStateError(ValueError):
    """A state file that cannot be read."""


class StateFiles:
    """``state.pt`` and ``state.previous.pt`` of a run folder.

    A new state is written to a temporary file and renamed once it is on disk. If the process is killed before the
    first rename, nothing has changed; between the two renames only the previous state exists, and it is complete.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.newest, self.previous, self._draft = (folder / f"state{end}" for end in (".pt", ".previous.pt", ".tmp"))

    def write(self, state: dict[str, Any]) -> None:
        """Write a state of tensors, numbers and strings; the newest one becomes the previous one.

        Raises:
            WriteError: If it cannot be written; the earlier states are unchanged.
        """
        with writing(self.newest):
            try:
                with self._draft.open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                if self.newest.exists():
                    self.newest.replace(self.previous)
                self._draft.replace(self.newest)
            except OSError:
                self._draft.unlink(missing_ok=True)
                raise

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """Read a state onto the CPU.

        Raises:
            FileNotFoundError: If there is none.
            DamagedStateError: If it is incomplete or corrupted.
        """
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            with zipfile.ZipFile(path) as archive:  # torch does not verify the checksums that it writes
                damaged = archive.testzip()
            state = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # corrupted bytes can raise almost anything in the readers
            raise DamagedStateError(f"{path} is damaged") from error
        if not isinstance(state, dict) or "format" not in state:
            raise DamagedStateError(f"{path} is damaged")
        return state

    def delete(self) -> None:
        """Remove both states."""
        for path in (self.newest, self.previous, self._draft):
            path.unlink(missing_ok=True)
