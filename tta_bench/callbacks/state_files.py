"""The two newest states of a run on disk, written so that a process may be killed at any moment."""

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

    A state is written beside them and moved in place when it is on disk. Killed before the first move, nothing has
    changed; between the moves, there is only the previous state, which is whole.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.newest, self.previous, self._draft = (folder / f"state{end}" for end in (".pt", ".previous.pt", ".tmp"))

    def write(self, state: dict[str, Any]) -> None:
        """Write a state of tensors, numbers and strings; the newest one becomes the previous one.

        Raises:
            WriteError: If the disk does not take it; the earlier states are as they were.
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
            DamagedStateError: If it is half-written or some of its bytes have changed.
        """
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            with zipfile.ZipFile(path) as archive:  # torch does not compare the checksums that it writes
                damaged = archive.testzip()
            state = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # whatever foreign bytes make of the readers
            raise DamagedStateError(f"{path} is damaged") from error
        if not isinstance(state, dict) or "format" not in state:
            raise DamagedStateError(f"{path} is damaged")
        return state

    def delete(self) -> None:
        """Remove both states."""
        for path in (self.newest, self.previous, self._draft):
            path.unlink(missing_ok=True)
