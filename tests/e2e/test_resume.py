"""A run that is killed, interrupted or out of disk space ends with the numbers of an uninterrupted run."""

from __future__ import annotations

import csv
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from io import StringIO
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore
from rich.console import Console
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tta_bench.callbacks import StateFiles
from tta_bench.callbacks.checkpoint import Resumed
from tta_bench.cli.app import app
from tta_bench.config.compose import compose_run
from tta_bench.config.words import ConfigError
from tta_bench.experiments import run as run_module
from tta_bench.experiments.bench import bench
from tta_bench.experiments.run import Run
from tta_bench.files import WriteError
from tta_bench.loggers.wandb_run import open_wandb
from tta_bench.methods.base import TTAMethod
from tta_bench.models.loading import load_model as loading
from tta_bench.results.run_folder import RowWriter

SMALL = [
    "dataset.num_images=20", "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=4", "trainer=cpu",
    "checkpoint_every=2",
]  # fmt: skip
BATCHES = 10
# Everything that a stream may change: parameters, moments, random numbers, a state that grows.
METHOD = """
import torch
from tta_bench.methods import Tent


class Everything(Tent):
    def configure_adaptation(self):
        super().configure_adaptation()
        self.add_state("bank", torch.zeros(0, 10))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.adapted, lr=self.hparams.lr)

    def diagnostics(self):
        return {"coreset_size": float(len(self.bank)), "noise": self.noise}

    def forward_and_adapt(self, images):
        self.noise = float(torch.rand((), generator=self.rng))
        logits = super().forward_and_adapt(images + 0.1 * self.noise)
        self.bank = torch.cat([self.bank, logits.detach()[:1]])
        return logits + self.bank.mean(dim=0)
"""
TIMES = {"started", "finished", "seconds", "seconds_per_batch_median", "peak_memory_bytes", "source_seconds",
         "source_cached", "folder", "config", "checksums"}  # fmt: skip


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    (tmp_path / "everything.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    yield "method=everything.Everything"
    sys.modules.pop("everything", None)
    ConfigStore.instance().repo.get("method", {}).pop("Everything.yaml", None)


class Done:
    """A run in this process and what it left."""

    def __init__(self, home, *words):
        console = Console(file=StringIO(), width=500)
        logger = [] if "logger=wandb" in words else ["logger=off"]
        self.run = Run(compose_run([*SMALL, *logger, *words, f"output={home}/runs", f"cache_dir={home}/cache"]))
        self.folder = self.run.folder
        try:
            self.result = self.run.execute(console)
        finally:
            self.said = console.file.getvalue()

    def rows(self):
        with (self.folder / "batches.csv").open(newline="") as file:
            return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def assert_same(a, b, place="state"):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), place
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a:
            assert_same(a[key], b[key], f"{place}.{key}")
    else:
        assert a == b, place


def assert_as_uninterrupted(done, whole):
    """Rows, result and final state are those of an uninterrupted run."""
    assert done.rows() == whole.rows()
    stored = json.loads((done.folder / "result.json").read_text())
    for result in (done.result, stored):
        assert_same({k: v for k, v in result.items() if k not in TIMES},
                    {k: v for k, v in whole.result.items() if k not in TIMES}, "result")  # fmt: skip
    with (done.folder / "batches.csv").open(newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    assert done.result["seconds"] == pytest.approx(sum(seconds), abs=1e-4)
    assert_same(whole.run.method.adaptation_state(), done.run.method.adaptation_state())
    assert sorted(p.name for p in done.folder.iterdir()) == ["batches.csv", "config.yaml", "result.json", "stream.json"]


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number, target, name, act, after=False):
    """Let the given call of a function do something else, in this process."""
    original, count = getattr(target, name), 0

    def counted(*args, **kwargs):
        nonlocal count
        count += 1
        if count == number and not after:
            act(*args)
        result = original(*args, **kwargs)
        if count == number and after:
            act(*args)
        return result

    setattr(target, name, counted)


def half_a_state(state, file):
    file.write(b"half a state")
    file.flush()
    kill()


def half_a_row(writer, *_):
    *rows, last = writer.path.read_bytes().splitlines(keepends=True)
    writer.path.write_bytes(b"".join(rows) + last[:7])
    kill()


MOMENTS = {
    "before the first state": lambda: at_call(2, TTAMethod, "test_step", lambda *_: kill()),
    "in a batch": lambda: at_call(4, TTAMethod, "test_step", lambda *_: kill()),
    "within a row": lambda: at_call(4, RowWriter, "write", half_a_row, after=True),
    "between row and state": lambda: at_call(2, StateFiles, "write", lambda *_: kill()),
    "within a state": lambda: at_call(2, torch, "save", half_a_state),
    "between the moves": lambda: at_call(3, os, "replace", lambda *_: kill()),
    "after a state": lambda: at_call(2, StateFiles, "write", lambda *_: kill(), after=True),
    "before the result": lambda: at_call(2, run_module, "write_result", lambda *_: kill()),
    "after the result": lambda: at_call(2, run_module, "write_result", lambda *_: kill(), after=True),
}


def in_a_child(prepare, home, *words):
    """Run in a forked process, which ``prepare`` lets end early; its exit code."""

    def run():
        prepare()
        Done(home, *words)

    child = get_context("fork").Process(target=run)
    child.start()
    child.join(120)
    return child.exitcode


@pytest.fixture
def whole(own_method, tmp_path):
    return Done(tmp_path / "whole", own_method)


class TestKilled:
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_at_any_moment_the_run_goes_on(self, whole, own_method, tmp_path, moment):
        assert in_a_child(MOMENTS[moment], tmp_path, own_method) == -signal.SIGKILL
        done = Done(tmp_path, own_method)
        expected = {"before the first state": "", "after the result": "already finished"}
        assert expected.get(moment, "resumed at batch") in done.said
        if moment == "after the result":
            done.run.method = whole.run.method  # nothing was run
        assert_as_uninterrupted(done, whole)

    def test_again_and_again_with_other_loaders(self, whole, own_method, tmp_path):
        for i, moment in enumerate(("in a batch", "within a row", "between the moves", "before the result")):
            assert in_a_child(MOMENTS[moment], tmp_path, own_method, f"num_workers={i % 2}") == -signal.SIGKILL
        assert_as_uninterrupted(Done(tmp_path, own_method, "num_workers=2"), whole)

    def test_with_a_damaged_state_it_goes_on_from_the_one_before(self, whole, own_method, tmp_path):
        in_a_child(lambda: at_call(6, TTAMethod, "test_step", lambda *_: kill()), tmp_path, own_method)
        (state,) = tmp_path.rglob("runs/**/state.pt")
        state.write_bytes(state.read_bytes()[:-100])
        done = Done(tmp_path, own_method)
        assert "state.pt cannot be used" in done.said
        assert "resumed at batch 2 from the previous state" in done.said
        assert_as_uninterrupted(done, whole)

    def test_with_both_states_damaged_it_starts_over(self, whole, own_method, tmp_path):
        in_a_child(MOMENTS["after a state"], tmp_path, own_method)
        for state in tmp_path.rglob("runs/**/state*.pt"):
            state.write_bytes(b"")
        done = Done(tmp_path, own_method)
        assert "starting over" in done.said
        assert_as_uninterrupted(done, whole)

    @pytest.mark.parametrize("method", ["dpcore", "tent"])
    def test_a_published_method_goes_on(self, tmp_path, method):
        own = ["method.num_source=64", "method.steps_new=2"] if method == "dpcore" else []
        whole = Done(tmp_path / "whole", f"method={method}", *own)
        assert in_a_child(MOMENTS["in a batch"], tmp_path, f"method={method}", *own) == -signal.SIGKILL
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        done = Done(tmp_path, f"method={method}", *own)
        assert "measuring" not in done.said  # what was measured is part of the state
        assert_as_uninterrupted(done, whole)

    @pytest.mark.slow
    def test_at_random_moments(self, whole, own_method, tmp_path):
        """A real process, killed from outside as soon as it has written a row of its own and a random time more."""
        words = [*SMALL, "logger=off", own_method, f"output={tmp_path}/runs", f"cache_dir={tmp_path}/cache"]
        for _ in range(8):
            environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
            process = subprocess.Popen([sys.executable, "-m", "tta_bench", "run", *words], env=environment)
            rows = []
            while process.poll() is None and not rows:
                time.sleep(0.001)
                rows = [p for p in tmp_path.glob("runs/**/batches.csv") if p.stat().st_mtime > time.time() - 0.02]
            time.sleep(random.uniform(0, 0.3))
            process.kill()
            process.wait()
        done = Done(tmp_path, own_method)
        assert done.rows() == whole.rows()
        assert done.result["domain_error"] == whole.result["domain_error"]


def stop(signum):
    return lambda: at_call(5, TTAMethod, "test_step", lambda *_: os.kill(os.getpid(), signum))


class TestInterrupted:
    @pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_it_ends_with_the_batch_and_goes_on(self, whole, own_method, tmp_path, signum, code):
        assert in_a_child(stop(signum), tmp_path, own_method, "checkpoint_every=null") == code
        (path,) = tmp_path.glob("runs/**/result.json")
        result = json.loads(path.read_text())
        assert (result["status"], sum(result["num_samples"].values())) == ("interrupted", 20)
        assert "interrupted at batch 5: run the same command again to resume" in result["error"]
        done = Done(tmp_path, own_method)
        assert "resumed at batch 5" in done.said
        assert_as_uninterrupted(done, whole)

    def test_just_after_a_batch_it_goes_on_too(self, whole, own_method, tmp_path):
        """Between our look at the signal and Lightning's."""
        from lightning.pytorch.loops import evaluation_loop

        connector = evaluation_loop._EvaluationLoop

        def late():
            original = connector._evaluation_step

            def step(self, *args):
                checkpoint = self.trainer.callbacks[-1]
                if self.batch_progress.current.ready == 4:
                    checkpoint.interrupts = type(checkpoint.interrupts)()  # ours does not see it
                    os.kill(os.getpid(), signal.SIGTERM)
                return original(self, *args)

            connector._evaluation_step = step

        assert in_a_child(late, tmp_path, own_method, "checkpoint_every=null") == 143
        done = Done(tmp_path, own_method)
        assert "resumed at batch 5" in done.said
        assert_as_uninterrupted(done, whole)

    def test_in_the_last_batch_it_is_finished_and_ends(self, whole, own_method, tmp_path):
        def last():
            return at_call(BATCHES, TTAMethod, "test_step", lambda *_: os.kill(os.getpid(), signal.SIGTERM))

        assert in_a_child(last, tmp_path, own_method) == 143
        done = Done(tmp_path, own_method)
        assert "already finished" in done.said
        assert done.rows() == whole.rows()


@pytest.mark.slow
def test_on_two_devices_a_run_is_interrupted_and_goes_on(own_method, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nfrom everything import Everything\nclass Slow(Everything):\n"
        "    def forward_and_adapt(self, images):\n        time.sleep(0.3)\n"
        "        return super().forward_and_adapt(images)\n"
    )
    words = [*SMALL, "logger=off", "method=slow.Slow", "trainer.devices=2", f"cache_dir={tmp_path}/cache"]
    command = [sys.executable, "-m", "tta_bench", "run", *words]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert subprocess.run([*command, f"output={whole}"], env=environment, check=False).returncode == 0
    process = subprocess.Popen([*command, f"output={parts}"], env=environment)
    while process.poll() is None and not any(p.stat().st_size > 300 for p in parts.rglob("batches.csv")):
        time.sleep(0.05)
    process.terminate()
    assert process.wait(100) == 143
    done = subprocess.run([*command, f"output={parts}"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resumed at batch") == 1
    rows = []
    for folder in (whole, parts):
        (path,) = folder.rglob("batches.csv")
        with path.open(newline="") as file:
            rows.append([{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)])
    assert rows[0] == rows[1]


class TestAFinishedRun:
    def test_is_not_repeated_and_its_result_is_shown(self, whole, own_method, tmp_path):
        again = Done(tmp_path / "whole", own_method, "checkpoint_every=3")
        assert "Everything seed 0: already finished" in again.said
        assert again.result == whole.result

    def test_is_skipped_by_bench(self, tmp_path):
        words = [*SMALL, "logger=off", f"output={tmp_path}"]
        first = bench([*words, "methods=[source]"], Console(file=StringIO()))
        console = Console(file=StringIO(), width=300)
        both = bench([*words, "methods=[source,tent]"], console)
        assert both[0]["finished"] == first[0]["finished"]
        assert console.file.getvalue().count("already finished") == 1
        assert [result["status"] for result in both] == ["done", "done"]

    @pytest.mark.parametrize("status", ["done", "interrupted"])
    def test_stays_on_disk_when_the_trainer_cannot_be_created_anew(self, tmp_path, status):
        words = [*SMALL, "logger=off", "method=source", f"output={tmp_path}"]
        run = Run(compose_run(words))
        run.execute(Console(file=StringIO()))
        path = run.folder / "result.json"
        path.write_text(path.read_text().replace('"status": "done"', f'"status": "{status}"'))
        before = path.read_text()
        again = Run(compose_run([*words, "resume=never"]))
        again.config.trainer.accelerator = "tpu"
        again.folder = run.folder
        result = again.execute(Console(file=StringIO()))
        assert (result["status"], path.read_text()) == ("failed", before)

    def test_is_repeated_when_never_is_asked_for(self, whole, own_method, tmp_path):
        assert in_a_child(MOMENTS["in a batch"], tmp_path, own_method) == -signal.SIGKILL
        for _ in range(2):
            done = Done(tmp_path, own_method, "resume=never")
            assert done.said == ""
            assert_as_uninterrupted(done, whole)

    def test_is_repeated_when_the_code_of_its_method_has_changed(self, whole, own_method, tmp_path):
        (tmp_path / "everything.py").write_text(METHOD + "# changed\n")
        again = Done(tmp_path / "whole", own_method)
        assert "running again, because code_sha256 was" in again.said
        assert again.rows() == whole.rows()


class TestAnotherRun:
    """States that lie in the folder of a run but are not its own."""

    @pytest.fixture
    def killed(self, own_method, tmp_path):
        in_a_child(MOMENTS["in a batch"], tmp_path, own_method)
        (state,) = tmp_path.rglob("state.pt")
        return state.parent

    @pytest.mark.parametrize(
        ("word", "named"),
        [("method.lr=0.5", "method.lr was 0.0001 and is 0.5"), ("seed=1", "seed was 0 and is 1")],
    )
    def test_of_another_configuration_is_refused(self, killed, own_method, tmp_path, word, named):
        words = [*SMALL, "logger=off", own_method, word, f"output={tmp_path}/runs", f"cache_dir={tmp_path}/cache"]
        folder = Run(compose_run(words)).folder
        shutil.copytree(killed, folder)
        done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["run", *words])
        assert done.exit_code == 2
        assert named in done.output
        assert "resume=never" in done.output
        assert len(done.output.strip().splitlines()) == 1
        assert (folder / "state.pt").read_bytes() == (killed / "state.pt").read_bytes()

    def test_of_another_version_is_refused(self, killed, own_method, tmp_path, monkeypatch):
        monkeypatch.setattr(run_module, "version", lambda name: "9.9" if name == "torch" else "0")
        with pytest.raises(ConfigError, match=r"versions\.tta_bench was .* and is 0"):
            Done(tmp_path, own_method)

    def test_of_other_weights_is_refused(self, own_method, tmp_path):
        weights = tmp_path / "w.safetensors"
        shutil.copy(Path(loading.__file__).parents[1] / "weights" / "shapes_vit.safetensors", weights)
        words = [own_method, f"model.checkpoint={weights}"]
        in_a_child(MOMENTS["in a batch"], tmp_path, *words)
        state = load_file(weights)
        state["norm.bias"] = state["norm.bias"] + 1
        save_file(state, weights)
        with pytest.raises(ConfigError, match="weights_sha256 was"):
            Done(tmp_path, *words)


class TestTheDisk:
    def test_full_while_a_state_is_written(self, whole, own_method, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(StateFiles, "write", StateFiles.write)
            patch.setattr(torch, "save", torch.save)
            at_call(2, torch, "save", full)
            failed = Done(tmp_path, own_method)
        assert failed.result["status"] == "failed"
        assert failed.result["error"].startswith("WriteError: cannot write ")
        assert "state.pt (No space left on device): free some space, then run the same" in failed.result["error"]
        assert len(failed.rows()) == 4
        done = Done(tmp_path, own_method)
        assert "resumed at batch 2" in done.said
        assert_as_uninterrupted(done, whole)

    def test_full_for_everything_is_one_sentence(self, own_method, tmp_path):
        """No file of the process may grow beyond 900 bytes: rows stop in mid-stream and so does the result."""
        code = (
            "import resource; from tta_bench.cli import app; import tta_bench.experiments.run as r\n"
            "write = r.write_result\n"
            "def first(*a): write(*a); resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))\n"
            "r.write_result = first\n"
            f"app({['run', *SMALL, 'logger=off', own_method, 'checkpoint_every=null', f'output={tmp_path}/runs']!r})"
        )
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith("error: cannot write ")
        assert len(done.stderr.splitlines()) == 1
        (rows,) = tmp_path.rglob("batches.csv")
        assert rows.read_bytes().endswith(b"\n")

    def test_unwritable_is_one_sentence(self, own_method, tmp_path):
        (tmp_path / "runs").write_text("a file, not a folder")
        with pytest.raises(WriteError, match=r"cannot write .* \(Not a directory\): make it writable or choose"):
            Done(tmp_path, own_method)


class TestWandb:
    def test_an_offline_run_goes_on_in_a_new_one_that_names_the_earlier(self, own_method, tmp_path):
        pytest.importorskip("wandb.proto.wandb_internal_pb2")
        from tests.helpers.wandb_files import items, whole_records

        words = [own_method, "logger=wandb", "logger.wandb.mode=offline"]
        assert in_a_child(stop(signal.SIGTERM), tmp_path, *words) == 143
        done = Done(tmp_path, *words)
        first, second = (
            [(r.WhichOneof("record_type"), r) for r in whole_records(path)]
            for path in sorted(done.folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
        )
        runs = [next(r.run for kind, r in records if kind == "run") for records in (first, second)]
        assert runs[0].run_id != runs[1].run_id
        assert runs[0].run_group == runs[1].run_group
        assert "resumed_from" not in items(runs[0].config.update)
        assert items(runs[1].config.update)["resumed_from"] == {"run": runs[0].run_id, "step": 5}
        for records, expected in ((first, range(5)), (second, range(5, BATCHES))):
            history = [items(r.history.item) for kind, r in records if kind == "history"]
            assert [row["stream/step"] for row in history if "stream/error" in row] == list(expected)

    @pytest.mark.parametrize(("mode", "offline", "goes_on"), [("online", 0, 1), ("online", 1, 0), ("offline", 0, 0)])
    def test_an_online_run_goes_on_under_its_id(self, own_method, tmp_path, monkeypatch, mode, offline, goes_on):
        import wandb

        asked = {}

        def init(**kwargs):
            asked.update(kwargs)
            raise wandb.Error("no network here")

        monkeypatch.setattr(wandb, "init", init)
        run = Run(
            compose_run([*SMALL, own_method, "logger=wandb", f"logger.wandb.mode={mode}", f"output={tmp_path}/runs"])
        )
        resumed = Resumed({"wandb": {"id": "abc", "offline": bool(offline)}}, [None] * 7)
        assert open_wandb(run.header(), run.folder, Console(file=StringIO()), resumed, mode=mode) == []
        assert (asked["id"] == "abc", asked["resume"]) == ((True, "allow") if goes_on else (False, None))
        assert asked["config"].get("resumed_from") == (None if goes_on else {"run": "abc", "step": 7})


def test_an_unknown_value_is_refused():
    with pytest.raises(ConfigError, match="resume must be one of auto, never; got 'maybe'"):
        compose_run(["resume=maybe"])
    with pytest.raises(ConfigError, match="checkpoint_every must be greater than or equal to 1; got 0"):
        compose_run(["checkpoint_every=0"])
