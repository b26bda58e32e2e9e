"""Benches started in different ways: small runs, methods that misbehave, and what two folders of runs must share."""

from __future__ import annotations

import csv
import io
import json
import sys

from hydra.core.config_store import ConfigStore
from rich.console import Console

from tta_bench.experiments.bench import bench

SMALL = ["dataset.num_images=12", "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=4", "logger=off",
         "trainer=cpu", "checkpoint_every=1", "output=runs", "cache_dir=cache"]  # fmt: skip
OWN = ["dpcore.steps_new=2", "dpcore.num_source=16", "cotta.num_views=2"]
TIMES = {"started", "finished", "seconds", "seconds_per_batch_median", "peak_memory_bytes", "source_seconds",
         "source_cached", "checksums", "folder"}  # fmt: skip
MODULE = '''
import os
import signal
from pathlib import Path

import torch
from tta_bench.methods import Tent


class Counts(Tent):
    """Counts batches in a state, which a run that continues restores."""

    def configure_adaptation(self):
        super().configure_adaptation()
        self.add_state("count", torch.zeros(1))

    def forward_and_adapt(self, images):
        self.at(int(self.count[0]))
        self.count += 1
        return super().forward_and_adapt(images)

    def at(self, batch):
        """What happens at a batch."""


class DiesOnce(Counts):
    def at(self, batch):
        mark = Path(os.environ["DEATHS"], f"{type(self).__name__}{self.hparams.lr}")
        if batch == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DiesAlways(Counts):
    def at(self, batch):
        if batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Raises(Counts):
    def at(self, batch):
        if batch == 2:
            raise RuntimeError("this method has a bug")


class ReturnsNaN(Counts):
    def forward_and_adapt(self, images):
        return super().forward_and_adapt(images) * float("nan")
'''


def misbehaving(folder, monkeypatch):
    """Make the module ``misbehaving`` importable, here and where its path is known."""
    (folder / "misbehaving.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("DEATHS", str(folder))


def forget_misbehaving():
    """Undo what importing it has registered."""
    sys.modules.pop("misbehaving", None)
    for name in ("DiesOnce", "DiesAlways", "Raises", "ReturnsNaN", "Counts"):
        ConfigStore.instance().repo.get("method", {}).pop(f"{name}.yaml", None)


def launched(folder, monkeypatch, *words):
    """The results of a bench with its run folders in ``folder``, and what it said."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    console = Console(file=io.StringIO(), width=500)
    return bench([*SMALL, *words], console), console.file.getvalue()


def contents(folder):
    """What the runs in a folder have written, times aside, by run folder and file."""
    found = {}
    for path in sorted(folder.glob("runs/**/result.json")):
        result = json.loads(path.read_text())
        with path.with_name("batches.csv").open(newline="") as file:
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
        found[str(path.parent.relative_to(folder))] = {
            "result": {key: value for key, value in result.items() if key not in TIMES},
            "rows": rows,
            **{name: path.with_name(name).read_bytes() for name in ("config.yaml", "stream.json")},
        }
    return found
