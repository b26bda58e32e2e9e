"""A cluster task that runs on one device is an independent run, whatever its rank."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SMALL = ["dataset.num_images=8", "dataset.domains=[fog]", "setting.batch_size=8", "trainer=cpu", "logger=csv"]


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job"},
        {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"},
    ],
    ids=["SLURM", "torchrun"],
)
def test_a_task_of_a_higher_rank_prints_and_writes_all_of_its_run(tmp_path, variables):
    command = [sys.executable, "-m", "tta_bench", "run", "method=source", *SMALL, f"output={tmp_path}/runs"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "1 run in" in done.stdout
    (folder,) = (path.parent for path in tmp_path.rglob("result.json"))
    assert len((folder / "batches.csv").read_text().splitlines()) == 2
    assert [path for path in folder.rglob("metrics.csv") if path.stat().st_size]
