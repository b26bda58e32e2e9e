"""What becomes of jobs whose workers die, are busy or never start, with an engine that follows a script."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from tta_bench.callbacks.progress import Progress
from tta_bench.config.words import ConfigError
from tta_bench.experiments.bench import make_plan
from tta_bench.experiments.launchers import dispatch
from tta_bench.experiments.launchers.dispatch import Dispatch
from tta_bench.experiments.launchers.engine import Died, Ready
from tta_bench.experiments.launchers.screen import Counts, Line, jobs_on_screen
from tta_bench.experiments.launchers.worker import Outcome, Survey

DIES = Died("its process was killed by SIGKILL")


class Scripted:
    """Slots that answer to the n-th attempt at a method with the n-th entry of its script; otherwise it is done."""

    def __init__(self, script=(), slots=2, ready=True, signals=()):
        self.script = {method: list(answers) for method, answers in dict(script).items()}
        self.slots, self.ready, self.signals, self.events, self.order = slots, ready, list(signals), [], []

    def capacity(self):
        return self.slots

    def open(self):
        slot = ScriptedSlot(self)
        self.events.append(
            (slot, Ready("here") if self.ready else Died("its process ended with ImportError: no torch"))
        )
        return slot

    def wait(self, seconds):
        if self.signals and not self.events:  # all workers are at work
            signal.raise_signal(self.signals.pop(0))
        heard, self.events = self.events, []
        return heard

    def close(self):
        self.closed = True


class ScriptedSlot:
    def __init__(self, engine):
        self.engine = engine

    def survey(self, jobs):
        self.engine.surveyed = [job.choices["method"] for job in jobs]
        self.engine.events.append((self, Survey({"schema": 1, "data": "known"}, ("cotta will fail: no views",))))

    def run(self, job, files):
        method = job.choices["method"]
        self.engine.order.append(method)
        answers = self.engine.script.get(method) or [[Outcome({"method": method, "status": "done"})]]
        self.engine.events += [(self, answer) for answer in answers.pop(0)]

    def stop(self):
        self.engine.events.append((self, Outcome()))

    def kill(self):
        self.engine.events.append((self, DIES))


def dispatched(tmp_path, engine, *methods):
    jobs = make_plan([f"methods=[{','.join(methods)}]", f"output={tmp_path}"]).compose()
    console = Console(file=io.StringIO(), width=300)
    return Dispatch(jobs, console, engine).run(), console.file.getvalue()


def test_long_jobs_start_first_and_results_come_in_the_order_of_the_jobs(tmp_path):
    engine = Scripted()
    results, said = dispatched(tmp_path, engine, "source", "tent", "dpcore")
    assert engine.order == ["dpcore", "tent", "source"]
    assert [result["method"] for result in results] == ["source", "tent", "dpcore"]
    assert results[0]["data"] == "known"
    assert engine.surveyed == ["source", "tent", "dpcore"]
    assert "cotta will fail: no views" in said
    assert engine.closed


def test_a_job_whose_workers_get_further_each_time_is_tried_again_and_again(tmp_path):
    deaths = [[Progress(batch, 10), DIES] for batch in (2, 4, 6, 8)]
    results, said = dispatched(tmp_path, Scripted({"tent": deaths}), "tent", "source")
    assert [result["status"] for result in results] == ["done", "done"]
    assert said.count("tent seed 0: its process was killed by SIGKILL; it starts over elsewhere") == 4


def test_a_job_whose_workers_die_twice_at_the_same_batch_fails_alone(tmp_path):
    deaths = [[Progress(4, 10), DIES], [Progress(4, 10, resumed=2), DIES], [Progress(9, 10)]]
    (tent, source), said = dispatched(tmp_path, Scripted({"tent": deaths}), "tent", "source")
    assert tent["status"] == "failed"
    assert tent["error"].startswith("its worker died twice at batch 4, probably because memory ran out")
    assert source["status"] == "done"
    assert "tent seed 0: resumed at batch 2" in said


def test_a_job_that_another_process_holds_is_tried_until_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "POLL", 0.01)
    engine = Scripted({"dpcore": [[Outcome(busy=True)]] * 3}, slots=1)
    results, said = dispatched(tmp_path, engine, "dpcore", "source")
    assert [result["status"] for result in results] == ["done", "done"]
    assert engine.order[:2] == ["dpcore", "source"]
    assert said.count("another process is running it; it comes at the end") == 1


def test_a_short_run_also_says_where_it_resumed(tmp_path):
    outcome = Outcome({"method": "tent", "status": "done"}, resumed=3)
    _, said = dispatched(tmp_path, Scripted({"tent": [[outcome]]}), "tent")
    assert "tent seed 0: resumed at batch 3" in said


@pytest.mark.parametrize(
    ("begun", "end"), [([Progress(2, 10)], "stop"), ([], "kill")], ids=["with a state", "before the first batch"]
)
def test_a_signal_ends_every_job_and_the_command_says_how_many_are_left(tmp_path, monkeypatch, begun, end):
    ended, original = [], getattr(ScriptedSlot, end)
    monkeypatch.setattr(ScriptedSlot, end, lambda slot: (ended.append(slot), original(slot)))
    engine = Scripted({"tent": [begun], "dpcore": [begun]}, signals=[signal.SIGINT])
    with pytest.raises(SystemExit) as stopped:
        dispatched(tmp_path, engine, "source", "tent", "dpcore")
    assert stopped.value.code == 128 + signal.SIGINT
    assert len(set(ended)) == 2
    assert engine.order == ["dpcore", "tent"]


def test_a_second_signal_kills_jobs_that_do_not_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(ScriptedSlot, "stop", lambda slot: None)
    engine = Scripted({"tent": [[Progress(2, 10)]]}, signals=[signal.SIGTERM, signal.SIGINT])
    with pytest.raises(SystemExit) as stopped:
        dispatched(tmp_path, engine, "tent")
    assert stopped.value.code == 128 + signal.SIGTERM


def test_jobs_wait_for_a_node_when_all_are_gone(tmp_path, monkeypatch):
    capacities = iter([1, 0, 0, 1])
    monkeypatch.setattr(Scripted, "capacity", lambda engine: next(capacities, 1))
    results, said = dispatched(tmp_path, Scripted({"tent": [[Progress(2, 10), DIES]]}), "tent")
    assert [result["status"] for result in results] == ["done"]
    assert said.count("no node has room for a run at present: waiting for one") == 1


def test_workers_that_never_start_are_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="no worker could be started: its process ended with ImportError: no torch"):
        dispatched(tmp_path, Scripted(ready=False), "source")


def test_the_table_shows_running_jobs_and_counts_the_others():
    console = Console(file=io.StringIO(), width=150)
    lines = [Line("tent seed 0", "node1, cuda:0", Progress(10, 70, "fog  error 41.0 %", 0.5)), Line("x", "y", None)]
    console.print(jobs_on_screen(lines, Counts(3, 2, 5, 1)))
    shown = console.file.getvalue()
    for text in ("3 done, 2 running, 5 waiting, 1 failed", "10/70", "0.50/s", "0:02:00", "error 41.0 %", "starting"):
        assert text in shown
