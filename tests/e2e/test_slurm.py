"""The scripts in docs/slurm, with an srun whose nodes are all this machine."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["dataset.num_images=8", "dataset.domains=[fog]", "setting.batch_size=8", "trainer=cpu", "logger=off",
         "output=runs", "cache_dir=cache"]  # fmt: skip


@pytest.fixture
def submit(tmp_path):
    """A function that runs a command as the only job of a cluster; when a job ends, SLURM ends its processes."""
    job = str(secrets.randbelow(10_000))
    path = os.pathsep.join([str(ROOT / "tests/helpers/slurm"), str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(*command, **variables):
        environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": job, "SLURM_NTASKS": "1", **variables}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"SLURM_JOB_ID={job}".encode() in environ.read_bytes().split(b"\0"):
                os.kill(int(environ.parent.name), signal.SIGKILL)


def test_the_tasks_of_an_array_share_the_runs(submit, tmp_path):
    words, counts = [*SMALL, "methods=[source,tent]"], []
    for task in ("1", "2"):
        shown = submit(ROOT / "docs/slurm/array.sh", *words, SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="2")
        assert "already finished" not in shown
        counts.append(len(list(tmp_path.glob("runs/**/result.json"))))
    assert counts == [1, 2]
    assert submit("tta-bench", "bench", *words).count("already finished") == 2


def test_tasks_that_start_at_once_share_the_runs_through_their_folder(submit, tmp_path):
    shown = submit("srun", "--ntasks=2", "tta-bench", "bench", *SMALL, "methods=[source,tent]")
    assert shown.count("2 runs in runs") == 2  # each shows the table
    assert shown.count("already finished") == 2  # and has run what the other has not
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 2


@pytest.mark.slow
def test_a_bench_runs_on_the_nodes_of_a_job_through_ray(submit, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tta_bench[ray]'")
    words = [*SMALL, "methods=[source,tent]", "launcher.max_concurrent=1"]
    shown = submit(ROOT / "docs/slurm/ray.sh", *words, SLURM_NNODES="2", SLURM_CPUS_PER_TASK="1")
    assert "2 of 2: source seed 0 done" in shown
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 2
