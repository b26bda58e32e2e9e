"""Workers that are Ray actors, on this machine or on a cluster; Ray decides where each of them is."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from tta_bench.callbacks.progress import Progress
from tta_bench.config.compose import Composed
from tta_bench.config.launch import RayLauncher
from tta_bench.config.words import ConfigError
from tta_bench.experiments.launchers.engine import Content, Died, Ready, Slot
from tta_bench.experiments.launchers.shipped import package_sha256, user_files, write_user_files
from tta_bench.experiments.launchers.worker import Files, Outcome, Survey, Worker
from tta_bench.experiments.run import PACKAGES
from tta_bench.files import WriteError, writing

EVERY = 1.0  # seconds between two requests for the progress of a job
ANSWER = 10.0  # seconds in which a cluster has to accept a connection
START_MS = 300_000  # how long a new local Ray may take to start; by default 100 s, too short on a busy machine
# Environment variables that the driver passes to workers, as arguments of an actor, which no log or dashboard shows.
SHIPPED = ("WANDB_", "HF_", "TTA_BENCH_")


@dataclass(frozen=True)
class Setup:
    """What a worker must have in common with the driver.

    Attributes:
        facts: Versions, and the hash of the code.
        files: The user's modules, by file name.
        environment: Environment variables.
        folder: The driver's current folder, to which relative paths refer.
        marks: Files that the driver has just written, one in each ``output``, and their contents.
    """

    facts: dict[str, str]
    files: dict[str, bytes]
    environment: dict[str, str] = field(repr=False)
    folder: str
    marks: dict[str, str]


def facts_here() -> dict[str, str]:
    """Versions and code that must be equal for equal numbers."""
    return {
        **{name: version(name) for name in PACKAGES},
        "Python": platform.python_version(),
        "the code of tta_bench": package_sha256()[:12],
    }


class RayWorker:
    """A worker in an actor: ``look`` and ``stop`` are answered while a job runs."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.worker = setup, Worker()
        self.progress: Progress | None = None
        os.environ.update(setup.environment)
        self.folder = tempfile.TemporaryDirectory()
        folder = setup.folder if Path(setup.folder).is_dir() else self.folder.name
        os.chdir(folder)
        write_user_files(setup.files, Path(self.folder.name, "modules"))

    def hello(self) -> Ready | ConfigError:
        """The worker's node and device, or in what it differs from the driver."""
        host = socket.gethostname()
        here = facts_here()
        for name, there in self.setup.facts.items():
            if here[name] != there:
                return ConfigError(
                    f"{host} has {name} {here[name]}, the driver {there}: install the same on all nodes of the cluster"
                )
        gpus = ",".join(map(str, ray.get_gpu_ids()))
        node = ray.get_runtime_context().get_node_id()[:6]
        return Ready(f"{host} {node}{f', cuda:{gpus}' if gpus else ''}", self._sees_output())

    def _sees_output(self) -> bool:
        try:
            return all(Path(path).expanduser().read_text() == content for path, content in self.setup.marks.items())
        except OSError:
            return False

    def survey(self, jobs: Sequence[Composed]) -> Survey | Exception:
        """What is known before the first run, or why it cannot be built."""
        try:
            return self.worker.survey(jobs)
        except (ValueError, FileNotFoundError) as error:
            return error

    def run(self, job: Composed, files: Files | None) -> Outcome:
        """Run a job."""
        self.progress = None
        return self.worker.run_logged(job, self._watch, files)

    def _watch(self, progress: Progress) -> None:
        self.progress = progress

    @ray.method(concurrency_group="control")
    def look(self) -> Progress | None:
        """The latest progress of the job."""
        return self.progress

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Let the job write its state and stop."""
        self.worker.stop()


@dataclass(eq=False)
class RaySlot:
    """An actor, and the answers expected from it."""

    actor: Any
    answers: dict[Any, str] = field(default_factory=dict)

    def _ask(self, name: str, *arguments: Any) -> None:
        self.answers[getattr(self.actor, name).remote(*arguments)] = name

    def hello(self) -> None:
        """Ask whether it has started."""
        self._ask("hello")

    def survey(self, jobs: Sequence[Composed]) -> None:
        """Request a survey."""
        self._ask("survey", list(jobs))

    def run(self, job: Composed, files: Files | None) -> None:
        """Run a job."""
        self._ask("run", job, files)

    def look(self) -> None:
        """Request the progress of a running job, unless a request is pending."""
        if "run" in self.answers.values() and "look" not in self.answers.values():
            self._ask("look")

    def stop(self) -> None:
        """Let the job write its state and stop."""
        self.actor.stop.remote()

    def kill(self) -> None:
        """End the actor at once."""
        ray.kill(self.actor)


class RayEngine:
    """Starts actors on a cluster.

    Args:
        launcher: The cluster, and the resources of each run.
        jobs: The jobs that will run.

    Raises:
        ConfigError: If the cluster cannot be reached or none of its nodes has the resources of a run.
        WriteError: If ``output`` cannot be written.
    """

    def __init__(self, launcher: RayLauncher, jobs: Sequence[Composed]) -> None:
        self.launcher, self.slots, self.marks, self._asked = launcher, list[RaySlot](), dict[str, str](), 0.0
        self.own = not ray.is_initialized()
        if self.own:
            os.environ.setdefault("RAY_agent_register_timeout_ms", str(START_MS))
            _check_answers(launcher.address or os.environ.get("RAY_ADDRESS") or "")
            try:
                ray.init(address=launcher.address, log_to_driver=False, logging_level="error")
            except Exception as error:  # Ray raises plain exceptions, too
                wanted = f"reached at launcher.address={launcher.address}" if launcher.address else "started or reached"
                raise ConfigError(f"Ray cannot be {wanted}: {str(error).strip().splitlines()[0]}") from error
            # Even without ``log_to_driver``, Ray prints a page whenever a node or a process dies.
            ray._private.worker._worker_logs_enabled = False
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        self.needs = {"CPU": launcher.cpus, "GPU": launcher.gpus if launcher.gpus is not None else float(has_gpus)}
        try:
            self._check_room()
            self.marks = _mark({str(job.config.output) for job in jobs})
        except (ConfigError, WriteError):
            self.close()
            raise
        shipped = {name: value for name, value in os.environ.items() if name.startswith(SHIPPED)}
        self.setup = ray.put(Setup(facts_here(), user_files(jobs), shipped, str(Path.cwd()), self.marks))
        as_actor = ray.remote(num_cpus=self.needs["CPU"], num_gpus=self.needs["GPU"], concurrency_groups={"control": 2})
        self.actor = as_actor(RayWorker)

    def _check_room(self) -> None:
        if self.capacity() == 0:
            nodes = [" and ".join(f"{node.get(name, 0):g} {name}" for name in self.needs) for node in _nodes()]
            raise ConfigError(
                f"no node of this cluster has the resources of a run (they have {', '.join(nodes)}): lower "
                "launcher.cpus or launcher.gpus"
            )

    def capacity(self) -> int:
        """How many runs the nodes have room for at present."""
        needs = [(name, need) for name, need in self.needs.items() if need]
        room = sum(min(int(node.get(name, 0) / need + 1e-6) for name, need in needs) for node in _nodes())
        return min(room, self.launcher.max_concurrent or room)

    def open(self) -> RaySlot:
        """Start an actor once a node has room."""
        slot = RaySlot(self.actor.remote(self.setup))
        self.slots.append(slot)
        slot.hello()
        return slot

    def wait(self, seconds: float) -> list[tuple[Slot, Content]]:
        """Answers of the actors."""
        if time.monotonic() - self._asked > EVERY:
            self._asked = time.monotonic()
            for slot in self.slots:
                slot.look()
        expected = {answer: slot for slot in self.slots for answer in slot.answers}
        if not expected:
            time.sleep(seconds)
            return []
        ray.wait(list(expected), timeout=seconds)
        there, _ = ray.wait(list(expected), num_returns=len(expected), timeout=0)
        heard: list[tuple[Slot, Content]] = []
        for answer in there:
            slot = expected[answer]
            if slot not in self.slots:  # an earlier answer said that it has died
                continue
            asked = slot.answers.pop(answer)
            try:
                content = ray.get(answer)
            except RayError as error:
                if asked == "look":  # the answer to "run" will say more
                    continue
                with suppress(RayError):
                    slot.kill()
                self.slots.remove(slot)
                content = Died(_reason(error))
            if content is not None:
                heard.append((slot, content))
        return heard

    def close(self) -> None:
        """End all actors, and the Ray of this process."""
        for slot in self.slots:
            with suppress(RayError):
                slot.kill()
        self.slots.clear()
        for path in self.marks:
            Path(path).expanduser().unlink(missing_ok=True)
        if self.own:
            ray.shutdown()
            ray._private.worker._worker_logs_enabled = True


def _check_answers(address: str) -> None:
    """Try to connect to ``host:port``; Ray itself would print its attempts for many minutes.

    Raises:
        ConfigError: If nothing answers.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}): check launcher.address or RAY_ADDRESS, or leave both out "
            "to use this machine"
        ) from error


def _nodes() -> list[dict[str, float]]:
    """The resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _mark(outputs: set[str]) -> dict[str, str]:
    """Write a file into each folder; a worker that reads it sees the same folder.

    Raises:
        WriteError: If a file cannot be written.
    """
    marks = {}
    for output in outputs:
        folder = Path(output).expanduser()
        name, content = f".{uuid.uuid4().hex}", uuid.uuid4().hex
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        marks[str(Path(output) / name)] = content
    return marks


def _reason(error: RayError) -> str:
    """Why an actor died, in a few words; Ray's own message fills a page."""
    text = str(error)
    low = text.lower()
    if any(sign in low for sign in ("out of memory", "memory monitor", "running low on memory")):
        return "its node ran out of memory"
    if any(sign in low for sign in ("node was terminated", "node has died", "node died")):
        return "its node died"
    if isinstance(error, ActorUnavailableError):  # a node that has just died, or a network that is down
        return "the connection to its process was lost"
    if isinstance(error, RayActorError) and "creation task" not in text:
        return "its process died"
    return text.strip().splitlines()[-1]
