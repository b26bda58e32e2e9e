"""The command line on two devices: the same rows as on one, one set of files, and the end of the run if a rank dies."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time

import pytest

SMALL = [
    "dataset.num_images=24", "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=9", "trainer=cpu",
    "logger=off", "threads=1",
]  # fmt: skip


def tta_bench(folder, *words):
    command = [sys.executable, "-m", "tta_bench", *words, f"output={folder}/runs", f"cache_dir={folder}/cache"]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder, env=environment)


def rows(folder):
    (path,) = folder.rglob("batches.csv")
    with path.open() as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


def test_two_devices_write_the_rows_of_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    words = ["run", *SMALL, "method=dpcore", "method.steps_new=3", "method.num_source=64"]

    assert tta_bench(one, *words).returncode == 0
    done = tta_bench(two, *words, "trainer.devices=2")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mean") == 1
    assert len(rows(one)) == 6
    for a, b in zip(rows(one), rows(two), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if key == "calibration":  # bin=samples/sum of confidences/right; only the sums are rounded
                parts = [[float(x) for x in re.split("[=/;]", row[key])] for row in (a, b)]
                assert parts[1] == pytest.approx(parts[0], rel=1e-4)
            elif key.startswith("distance"):
                assert float(b[key]) == pytest.approx(float(a[key]), rel=1e-4, nan_ok=True)
            else:
                assert a[key] == b[key]


@pytest.mark.slow
def test_in_float64_fifty_steps_on_two_devices_end_where_they_end_on_one(tmp_path):
    """Fifty AdamW steps amplify rounding: in float32 a decision may differ, in float64 none does."""
    words = [
        "run",
        *SMALL,
        "setting.batch_size=12",
        "method=dpcore",
        "method.num_source=64",
        "trainer.precision=64-true",
    ]
    for devices in (1, 2):
        (tmp_path / str(devices)).mkdir()
        done = tta_bench(tmp_path / str(devices), *words, f"trainer.devices={devices}")
        assert done.returncode == 0, done.stderr
    one, two = rows(tmp_path / "1"), rows(tmp_path / "2")
    assert len(one) == 4
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {"calibration"}:
            if key.startswith("distance"):
                assert float(b[key]) == pytest.approx(float(a[key]), rel=1e-4, nan_ok=True)
            else:
                assert a[key] == b[key], key


DIES = """
import torch.distributed as dist
from tta_bench.methods import Tent

class Dies(Tent):
    count = 0
    def forward_and_adapt(self, images):
        self.count += 1
        if self.count == 3 and dist.get_rank() == 1:
            raise RuntimeError("this rank has died")
        return super().forward_and_adapt(images)
"""


def test_a_rank_that_dies_ends_the_run_within_a_minute_and_keeps_the_rows(tmp_path):
    (tmp_path / "dying.py").write_text(DIES)
    started = time.monotonic()
    done = tta_bench(tmp_path, "run", *SMALL, "method=dying.Dies", "trainer.devices=2")
    assert time.monotonic() - started < 100  # start-up included
    assert done.returncode != 0
    assert "this rank has died" in done.stderr + done.stdout
    assert len(rows(tmp_path)) == 2
    (result,) = tmp_path.rglob("result.json")
    assert json.loads(result.read_text())["status"] in ("failed", "running")
