"""A cluster of two nodes on this machine: one process's bytes, whatever happens to nodes, actors and driver."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.helpers.launched import OWN, SMALL, contents, forget_misbehaving, launched, misbehaving
from tta_bench.config.words import ConfigError
from tta_bench.files import WriteError

# Ray reads these when it is imported.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
               "RAY_agent_register_timeout_ms": "300000", "RAY_raylet_start_wait_time_s": "300"}  # fmt: skip
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tta_bench[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two nodes of one CPU each; the head has none."""
    from ray.cluster_utils import Cluster

    misbehaving(tmp_path, monkeypatch)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": QUICK})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()
    forget_misbehaving()


def test_runs_are_those_of_one_process_byte_for_byte(cluster, tmp_path, monkeypatch):
    cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    words = ["methods=[source,tent,cotta,dpcore]", "seeds=[0,1]", *OWN]
    one, _ = launched(tmp_path / "one", monkeypatch, *words)
    two, _ = launched(tmp_path / "two", monkeypatch, *words, "launcher=ray")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert [r["mean_error"] for r in two] == [r["mean_error"] for r in one]
    assert not list((tmp_path / "two" / "runs").glob(".*"))  # the mark is gone


def test_actors_that_die_and_methods_that_fail_stop_nothing(cluster, tmp_path, monkeypatch):
    cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    own = [f"misbehaving.{name}" for name in ("DiesOnce", "DiesAlways", "Raises", "ReturnsNaN")]
    (once, always, raises, nan, tent), said = launched(
        tmp_path / "two", monkeypatch, f"methods=[{','.join(own)},tent]", "launcher=ray"
    )
    assert once["status"] == tent["status"] == "done"
    assert "DiesOnce seed 0: its process died; it continues from its last state elsewhere" in said
    assert "DiesOnce seed 0: resumed at batch 3" in said
    assert "its worker died twice at batch " in always["error"]
    assert raises["error"] == "RuntimeError: this method has a bug"
    assert "not finite" in nan["error"]
    launched(tmp_path / "one", monkeypatch, "methods=[misbehaving.DiesOnce]")
    (name,) = contents(tmp_path / "one")
    assert contents(tmp_path / "one")[name]["rows"] == contents(tmp_path / "two")[name]["rows"]


def test_output_that_workers_do_not_see_comes_back(cluster, tmp_path, monkeypatch):
    """``~/runs`` is another folder for the driver than for the node, whose home is elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    cluster.add_node(num_cpus=1, env_vars={"HOME": str(tmp_path / "elsewhere")})
    monkeypatch.setenv("HOME", str(tmp_path / "one"))
    results, _ = launched(tmp_path / "one", monkeypatch, "methods=[tent]", "output='~/runs'", "launcher=ray")
    assert [result["status"] for result in results] == ["done"]
    assert len(contents(tmp_path / "one")) == 1
    assert not list((tmp_path / "elsewhere").rglob("result.json"))


def test_an_address_where_nothing_answers_is_one_sentence(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address} .*check launcher.address"):
            launched(tmp_path, monkeypatch, "methods=[source]", "launcher=ray", f"launcher.address='{address}'")


def test_other_code_on_a_node_is_refused(cluster, tmp_path, monkeypatch):
    from tta_bench.experiments.launchers import ray as launcher

    cluster.add_node(num_cpus=1)
    here = launcher.facts_here()
    monkeypatch.setattr(launcher, "facts_here", lambda: {**here, "torch": "0.9"})
    with pytest.raises(ConfigError, match=r"has torch .*, the driver 0\.9: install the same"):
        launched(tmp_path / "two", monkeypatch, "methods=[source]", "launcher=ray")
    assert not list((tmp_path / "two").rglob("result.json"))


def test_a_run_that_fits_on_no_node_is_refused(cluster, tmp_path, monkeypatch):
    cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    with pytest.raises(ConfigError, match=r"no node of this cluster has the resources of a run .*1 CPU and 0 GPU"):
        launched(tmp_path / "two", monkeypatch, "methods=[source]", "launcher=ray", "launcher.cpus=2")


def test_output_that_cannot_be_written_is_one_sentence(cluster, tmp_path, monkeypatch):
    cluster.add_node(num_cpus=1)
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=r"cannot write .*file/runs"):
        launched(tmp_path / "two", monkeypatch, "methods=[source]", "launcher=ray", f"output={tmp_path}/file/runs")
    assert not ray.is_initialized()


def test_a_node_that_dies_costs_its_run_the_batches_since_the_last_state(cluster, tmp_path, monkeypatch):
    nodes, folder = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)], tmp_path / "two"

    def remove():
        while not list(folder.rglob("state.pt")):
            time.sleep(0.05)
        for node in nodes:
            raylet = node.all_processes["raylet"][0].process.pid
            if subprocess.run(["pgrep", "-P", str(raylet), "-f", "RayWorker"], capture_output=True).stdout:
                cluster.remove_node(node, allow_graceful=False)
                return

    threading.Thread(target=remove, daemon=True).start()
    words = ["methods=[dpcore]", *OWN[:2], "dataset.num_images=60"]
    results, said = launched(folder, monkeypatch, *words, "launcher=ray")
    assert [result["status"] for result in results] == ["done"]
    assert "it continues from its last state elsewhere" in said
    assert "resumed at batch" in said
    launched(tmp_path / "one", monkeypatch, *words)
    assert contents(tmp_path / "one") == contents(folder)


def test_a_driver_that_is_killed_continues_with_the_same_command(cluster, tmp_path, monkeypatch):
    cluster.add_node(num_cpus=1)
    words, folder = ["methods=[dpcore]", *OWN[:2], "dataset.num_images=60"], tmp_path / "two"
    folder.mkdir()
    command = [sys.executable, "-m", "tta_bench", "bench", *SMALL, *words, "launcher=ray"]
    with subprocess.Popen(command, cwd=folder) as driver:
        while not list(folder.rglob("state.pt")):
            assert driver.poll() is None
            time.sleep(0.05)
        driver.kill()
    results, said = launched(folder, monkeypatch, *words, "launcher=ray")
    assert [result["status"] for result in results] == ["done"]
    assert "resumed at batch" in said
    launched(tmp_path / "one", monkeypatch, *words)
    assert contents(tmp_path / "one") == contents(folder)
