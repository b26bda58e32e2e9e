"""Reads the records of a .wandb file, which W&B writes for the server."""

from __future__ import annotations

import csv
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
BLOCK = 32768  # block size of LevelDB's log format, which a .wandb file has after a header of 7 bytes
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[object]:
    """Read the records of a .wandb file."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    position, parts = 7, []
    while position + 7 <= len(content):
        room = BLOCK - position % BLOCK
        if room < 7:  # the rest of a block that has no room for a header is padding
            position += room
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (FULL, LAST):
            record = pb.Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []
        else:
            assert kind in (FIRST, MIDDLE)


def whole_records(path: Path) -> list:
    """Read the records of a finished run, waiting for the last ones, which are written a moment after its end."""
    for _ in range(100):
        records = list(read_records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} has not ended")


def items(updates) -> dict[str, object]:
    """Key-value items of a record; nested keys are joined by dots."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in updates}


class OfflineRun:
    """An offline run of W&B in a folder.

    Args:
        folder: The folder of its files.
        run_id: Id of the run; may be omitted if there is only one.
    """

    def __init__(self, folder: Path, run_id: str = "*") -> None:
        (path,) = folder.glob(f"wandb/offline-run-*-{run_id}/*.wandb")
        self.files = path.parent / "files"
        self.records = whole_records(path)
        runs = self.of_kind("run")
        self.run = runs[0]
        self.config = {k: v for run in runs for k, v in items(run.config.update).items()}
        self.history = [items(record.item) for record in self.of_kind("history")]
        self.steps = [row for row in self.history if "stream/error" in row]
        self.summary = {k: v for record in self.of_kind("summary") for k, v in items(record.update).items()}

    def of_kind(self, kind: str) -> list:
        """Records of one kind."""
        return [getattr(r, kind) for r in self.records if r.WhichOneof("record_type") == kind]

    @property
    def to_upload(self) -> set[str]:
        """Files to be uploaded, relative to ``files``."""
        return {file.path for record in self.of_kind("files") for file in record.files}

    def table(self, key: str) -> dict:
        """A logged table, or that of a chart."""
        (path,) = self.files.glob(f"media/table/{key}_*.table.json")
        return json.loads(path.read_text())


class Logged(OfflineRun):
    """The only W&B run in a run folder, beside the folder's own files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.result = json.loads((folder / "result.json").read_text())
        path = folder / "batches.csv"
        self.rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
