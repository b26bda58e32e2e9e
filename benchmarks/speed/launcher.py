"""What launching costs: time of the driver per job, the speed-up of two workers, and 10,000 jobs on 64 slots.

python -m benchmarks.speed.launcher jobs       # an engine whose jobs take no time: the driver's own time per job
python -m benchmarks.speed.launcher slots      # 10,000 jobs that sleep, on 64 slots
python -m benchmarks.speed.launcher workers    # real runs, two processes against one
"""

from __future__ import annotations

import io
import resource
import sys
import tempfile
import time
from collections.abc import Sequence

from rich.console import Console

from tta_bench.callbacks.progress import Progress
from tta_bench.config.compose import Composed
from tta_bench.experiments.bench import bench, make_plan
from tta_bench.experiments.launchers.dispatch import Dispatch
from tta_bench.experiments.launchers.engine import Content, Ready, Slot
from tta_bench.experiments.launchers.worker import Files, Outcome, Survey

COMPOSED = 200  # different configurations; longer lists repeat them
SMALL = ["dataset.num_images=64", "setting=csc", "logger=off", "trainer=cpu", "threads=1"]


class Sleeper:
    """A slot whose job only takes time."""

    def __init__(self, engine: Sleepers) -> None:
        self.engine = engine

    def survey(self, jobs: Sequence[Composed]) -> None:
        """Answer at once."""
        self.engine.after(0, self, Survey({"schema": 1}))

    def run(self, job: Composed, files: Files | None) -> None:
        """Answer after a while."""
        self.engine.after(self.engine.seconds / 2, self, Progress(5, 10, "fog  error 40.0 %", 1.0))
        self.engine.after(self.engine.seconds, self, Outcome({**job.choices, "status": "done", "schema": 1}))

    def stop(self) -> None:
        """Nothing to stop."""

    def kill(self) -> None:
        """Nothing to kill."""


class Sleepers:
    """An engine whose jobs only take time."""

    def __init__(self, slots: int, seconds: float) -> None:
        self.slots, self.seconds, self.events = slots, seconds, list[tuple[float, Slot, Content]]()

    def after(self, seconds: float, slot: Slot, content: Content) -> None:
        """Deliver a message later."""
        self.events.append((time.monotonic() + seconds, slot, content))

    def capacity(self) -> int:
        """The number of slots."""
        return self.slots

    def open(self) -> Slot:
        """A slot, ready at once."""
        slot = Sleeper(self)
        self.after(0, slot, Ready("here"))
        return slot

    def wait(self, seconds: float) -> list[tuple[Slot, Content]]:
        """Messages that are due."""
        until = time.monotonic() + seconds
        time.sleep(max(0, min([until, *(at for at, *_ in self.events)]) - time.monotonic()))
        now = time.monotonic()
        heard = [(slot, content) for at, slot, content in self.events if at <= now]
        self.events = [event for event in self.events if event[0] > now]
        return heard

    def close(self) -> None:
        """Nothing to close."""


def simulate(jobs: int, slots: int, seconds: float) -> None:
    make_plan(SMALL).compose()  # imports
    cpu = time.process_time()
    plan = make_plan([*SMALL, "methods=[source,tent]", f"seeds=[{','.join(map(str, range(COMPOSED // 2)))}]"])
    composed = plan.compose() * (jobs // COMPOSED)
    made, cpu = time.process_time() - cpu, time.process_time()
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    started = time.monotonic()
    Dispatch(composed, console, Sleepers(slots, seconds)).run()
    took, ideal = time.monotonic() - started, jobs * seconds / slots
    print(f"{jobs} jobs of {seconds} s on {slots} slots: {1000 * made / COMPOSED:.1f} ms of CPU time to compose each")
    print(f"run in {took:.1f} s, {ideal:.1f} s without any loss; {took - ideal:.1f} s lost to scheduling")
    print(f"{1000 * (time.process_time() - cpu) / jobs:.2f} ms of the driver's CPU time per job")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of the driver's memory")


def workers() -> None:
    for number in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            words = ["methods=[tent,dpcore]", "seeds=[0,1]", f"output={folder}", f"launcher.workers={number}"]
            bench([*SMALL, *words], Console(quiet=True))
            print(f"{number} worker(s): {time.monotonic() - started:.1f} s for 4 runs")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["jobs"]:
            simulate(200, 2, 0.01)
        case ["slots"]:
            simulate(10_000, 64, 2.0)
        case ["workers"]:
            workers()
        case _:
            sys.exit(__doc__)
