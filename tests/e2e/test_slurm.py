"""The script in docs/slurm, with an srun that starts the tasks on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = ["dataset.num_images=8", "dataset.domains=[fog]", "setting.batch_size=8", "trainer=cpu", "logger=off",
         "output=runs", "cache_dir=cache"]  # fmt: skip


def submitted(folder, *command, **variables):
    """What a job with this command prints."""
    path = os.pathsep.join([str(ROOT / "tests/helpers/slurm"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tasks_of_an_array_share_the_runs(tmp_path):
    words, counts = [*SMALL, "methods=[source,tent]"], []
    for task in ("1", "2"):
        own = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"}
        assert "already finished" not in submitted(tmp_path, ROOT / "docs/slurm/array.sh", *words, **own)
        counts.append(len(list(tmp_path.glob("runs/**/result.json"))))
    assert counts == [1, 2]
    assert submitted(tmp_path, "tta-bench", "bench", *words).count("already finished") == 2
