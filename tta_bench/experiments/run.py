"""A run: one method on one stream, written to one folder."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from hydra_zen import get_target
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from tta_bench.callbacks import (
    AdaptationMonitor,
    FreezeAfterFirstDomain,
    RankAgreement,
    ResetAtBoundaries,
    StateFiles,
    StreamCheckpoint,
    StreamProgress,
)
from tta_bench.callbacks.forgetting import Forgetting
from tta_bench.callbacks.interrupts import Interrupted, Interrupts
from tta_bench.callbacks.label_free import LabelFree
from tta_bench.callbacks.monitor import peak_memory_bytes
from tta_bench.callbacks.predictions import SavePredictions
from tta_bench.callbacks.progress import Progress
from tta_bench.callbacks.save_adapted import SaveAdapted
from tta_bench.config.compose import Composed, build, plain, require
from tta_bench.config.words import ConfigError
from tta_bench.console import say
from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.base import DomainDataset, has_unlabelled
from tta_bench.experiments.known_protocols import protocol_of
from tta_bench.experiments.notices import data_notices, error_notice, model_notices, say_new
from tta_bench.experiments.opened import Opened
from tta_bench.experiments.resume import code_sha256, find_finished, find_state, has_numbers, locked
from tta_bench.experiments.source_cache import fit_or_load_source, source_file
from tta_bench.experiments.trainer import make_trainer, own_callbacks
from tta_bench.files import writing
from tta_bench.loggers.open_loggers import open_loggers
from tta_bench.loggers.wandb_run import close_wandb, run_id, summarize_wandb
from tta_bench.methods import METHODS
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.base import Backbone
from tta_bench.models.loading.segformer import load_segformer, require_mmseg
from tta_bench.ranks import is_worker
from tta_bench.results.identity import config_hash, identity
from tta_bench.results.run_folder import SCHEMA, whole_rows, write_result
from tta_bench.results.visits import visit_summary
from tta_bench.streams import Schedule
from tta_bench.types import SourceNeed

# What a resumed run takes over from its beginning.
BEGUN = ("started", "source_seconds", "source_cached", "source_forward_samples", "source_backward_samples")
PACKAGES = ("tta_bench", "torch", "lightning", "timm", "numpy", "scipy", "opencv-python-headless")


def build_method(node: DictConfig, backbone: Backbone, seed: int) -> TTAMethod:
    """Build the method that a node describes; the seed is passed only if the method accepts one.

    Raises:
        ConfigError: If the model is a segmentation model, which the method does not support.
    """
    make = build(node)
    if backbone.segments and not make.func.segments:
        able = ", ".join(name for name, cls in METHODS.items() if cls.segments)
        raise ConfigError(f"{make.func.__name__} cannot adapt a segmentation model: choose from {able}")
    takes_seed = "seed" in inspect.signature(make.func).parameters
    return make(backbone, seed=seed) if takes_seed else make(backbone)


class Run:
    """Everything that a run needs, built from its configuration before it starts.

    Args:
        composed: The configuration and the names chosen in it.
        opened: Data sets and source models of earlier runs; used where they are the same.
        root: Root of the run folders, instead of the configuration's ``output``.

    Raises:
        ConfigError: If a value is missing.
        ValueError: If the data, the stream or the model is wrong.
    """

    def __init__(self, composed: Composed, opened: Opened | None = None, root: Path | None = None) -> None:
        if get_target(composed.config.model) is load_segformer:
            require_mmseg()  # before anything else can be missing
        require(composed.config)
        self.config, self.choices, self.words, self.tuned = (
            composed.config, composed.choices, composed.words, composed.tuned
        )  # fmt: skip
        if self.config.threads:
            torch.set_num_threads(int(self.config.threads))
        self.seed, self.title = int(self.config.seed), composed.title
        self.opened = opened or Opened()
        self.domains: DomainDataset = self.opened.domains(self.config.dataset)
        setting = plain(self.config.setting)
        self.schedule: Schedule = schedule_for(self.domains, setting.pop("kind"), seed=self.seed, **setting)
        self.backbone = self._source_model()
        self.method: TTAMethod = build_method(self.config.method, self.backbone, self.seed)
        self.data = StreamDataModule(self.domains, self.schedule, num_workers=self.config.num_workers, seed=self.seed)
        self.forgetting = Forgetting(self.config.forgetting or 0, self.config.setting.batch_size, self._source_model)
        self.forgetting.check(self.domains, self.backbone)
        for key in ("label_free", "save_predictions"):
            if self.backbone.segments and self.config[key] not in ("auto", "never", None):
                raise ConfigError(f"{key}={self.config[key]} is only for classification: leave it out")
        if self.config.save_predictions == "parquet" and find_spec("pyarrow") is None:
            raise ConfigError("save_predictions=parquet needs the package pyarrow: install it, or use csv")
        asked = {"always": True, "never": False, "auto": has_unlabelled(self.domains)}[self.config.label_free]
        # A row of predictions has the source model's, too.
        self._measures_label_free = (asked or bool(self.config.save_predictions)) and not self.backbone.segments
        self.folder = self.folder_of(composed, root)
        self.interrupts = Interrupts()

    @staticmethod
    def folder_of(composed: Composed, root: Path | None = None) -> Path:
        """The folder of the run with this configuration, below ``root`` or the configuration's ``output``."""
        config = composed.config
        names = [composed.choices[group] for group in ("dataset", "setting", "method")]
        names.append(f"seed{int(config.seed)}-{config_hash(plain(config))}")
        return (root or Path(str(config.output)).expanduser()).joinpath(*names)

    def _source_model(self) -> Backbone:
        return self.opened.backbone(self.config.model, self.choices["model"], self.config.dataset)

    def execute(self, console: Console, watch: Callable[[Progress], None] | None = None) -> dict[str, Any]:
        """Run the stream, or the rest of it, and return what ``result.json`` holds.

        A finished run is not repeated. If the method raises or returns a score that is not finite, or if the trainer,
        callbacks or loggers cannot be built, the run ends with status ``failed`` and the message; the rows so far stay
        on disk.

        Args:
            console: Where the run prints.
            watch: Called after every batch.

        Raises:
            BusyError: If another process has locked the run folder.
            ValueError: If a label map that is looked at beforehand cannot be read.
            ConfigError: If the state in the run folder belongs to another run; nothing is written then.
            WriteError: If the run folder cannot be written.
            Interrupted: After a SIGTERM or SIGINT, once everything is on disk.
        """
        label_free = LabelFree(self._source_model) if self._measures_label_free else None
        monitor = AdaptationMonitor(rows=self.folder / "batches.csv", label_free=label_free)
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        checkpoint = StreamCheckpoint(StateFiles(self.folder), monitor, every, seconds, interrupts=self.interrupts)
        progress = StreamProgress(self.title, monitor, console, watch=watch)
        oracles = {"domain": ResetAtBoundaries, "first_domain": FreezeAfterFirstDomain}
        policies = [oracles[self.config.reset](monitor)] if self.config.reset in oracles else []

        def trainer() -> L.Trainer:
            own = [*self._savers(monitor), *own_callbacks(self.config.callbacks)]
            callbacks = [monitor, *policies, *own, progress, RankAgreement(monitor), self.forgetting, checkpoint]
            return make_trainer(self.config.trainer, callbacks)

        if is_worker(self.config.trainer.devices):
            return self._adapt_along(trainer(), checkpoint)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            if finished := self._finished(console):
                return finished
            try:
                made = trainer()
            except ConfigError as error:
                return self._failed(error)
            return self._run(made, monitor, checkpoint, console)

    def prepare_source(self, console: Console) -> tuple[dict[str, Any], Path]:
        """Run only the method's source phase, and cache its result for later runs.

        Returns:
            Its cost, and the cached file.

        Raises:
            ConfigError: If the method has no source phase.
        """
        if self.method.source_need is SourceNeed.NOTHING:
            raise ConfigError(f"{self.choices['method']} needs no source images: there is nothing to prepare")
        cache = Path(self.config.cache_dir)
        facts = fit_or_load_source(self.method, self.data, cache, make_trainer(self.config.trainer), console)
        return facts, source_file(self.method, self.data, cache)

    def _finished(self, console: Console) -> dict[str, Any] | None:
        if self.config.resume == "never":
            return None
        return find_finished(self.folder, identity(self.header()), self.title, console)

    def _failed(self, error: Exception) -> dict[str, Any]:
        """The result of a run that failed before its first batch; an earlier result with batches stays on disk."""
        result = {**self.header(), "status": "failed", "error": str(error), "finished": _utc()}
        if not has_numbers(self.folder):
            with writing(self.folder):
                OmegaConf.save(self.config, self.folder / "config.yaml")
            result = write_result(self.folder, result)
        return {**result, "folder": str(self.folder)}

    def _run(
        self, trainer: L.Trainer, monitor: AdaptationMonitor, checkpoint: StreamCheckpoint, console: Console
    ) -> dict[str, Any]:
        result = self.header() | {"notices": self.notices()}
        mine = identity(result, device=trainer.strategy.root_device.type, matmul=torch.get_float32_matmul_precision())
        if self.config.resume == "never":
            checkpoint.files.delete()
        resumed = checkpoint.resumed = find_state(self.folder, mine, self.title, console)
        with writing(self.folder):
            if resumed is None:
                (self.folder / "batches.csv").unlink(missing_ok=True)  # of an earlier run into this folder
            OmegaConf.save(self.config, self.folder / "config.yaml")
            self.schedule.save(self.folder / "stream.json")
        if resumed is not None:
            result |= resumed.state["begun"]
        say_new(console, result["notices"], self.opened.said)
        write_result(self.folder, result)
        try:
            trainer.loggers = loggers = open_loggers(self.config.logger, result, self.folder, console, resumed)
        except ConfigError as error:
            return self._failed(error)
        try:
            if resumed is None:
                result |= fit_or_load_source(self.method, self.data, Path(self.config.cache_dir), trainer, console)
            begun = {key: result[key] for key in BEGUN}
            checkpoint.facts = {"identity": mine, "begun": begun, "wandb": run_id(loggers)}
            with checkpoint.interrupts:
                trainer.test(self.method, datamodule=self.data, verbose=False)
            result["status"] = "done"
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            reason = checkpoint.explain(error)
            stopped = isinstance(reason, Interrupted | KeyboardInterrupt)
            result |= {"status": "interrupted" if stopped else "failed", "error": _told(reason)}
            if not isinstance(reason, Exception):
                say(console, f"{self.title}: {reason}", "bold red")
                raise reason from None
        finally:
            result |= self._outcome(monitor, trainer.strategy.root_device) | self.forgetting.facts
            result["notices"] = [*result["notices"], *self._error_notices(result)]
            try:
                result = write_result(self.folder, result)
            finally:
                summarize_wandb(loggers, result, self.folder, console)
                close_wandb(loggers, failed=result["status"] != "done")
        if told := protocol_of(result, self.domains.name):
            say(console, f"The source error {told}")
        if result["status"] == "done":
            checkpoint.files.delete()
            checkpoint.interrupts.obey(len(self.schedule))
        return {**result, "folder": str(self.folder)}

    def _adapt_along(self, trainer: L.Trainer, checkpoint: StreamCheckpoint) -> dict[str, Any]:
        """Run as a rank other than 0: compute a share of every batch, and leave writing files to rank 0."""
        if finished := self._finished(Console(quiet=True)):
            return finished
        fit_or_load_source(self.method, self.data, Path(self.config.cache_dir), trainer, Console(quiet=True))
        with checkpoint.interrupts:
            trainer.test(self.method, datamodule=self.data, verbose=False)
        return {"status": "done"}

    def _savers(self, monitor: AdaptationMonitor) -> list[L.Callback]:
        """What else the run writes into its folder."""
        found: list[L.Callback] = []
        if (form := self.config.save_predictions) and monitor.label_free:
            path, parquet = self.folder / "predictions.csv", form == "parquet"
            found.append(SavePredictions(path, monitor.label_free, lambda: len(monitor.earlier), parquet))
        if when := self.config.save_adapted:
            every = None if when == "last" else int(when.removeprefix("every_"))
            facts: dict[str, Any] = {key: self.choices[key] for key in ("method", "setting", "dataset", "model")}
            facts |= {"seed": self.seed, "source_weights_sha256": self.backbone.weights_sha256}
            facts["model_config"] = plain(self.config.model)
            found.append(SaveAdapted(self.folder, self._source_model, facts, every))
        return found

    def header(self) -> dict[str, Any]:
        """The part of ``result.json`` that is known before the run starts."""
        return {
            "schema": SCHEMA,
            "status": "running",
            **{key: self.choices[key] for key in ("method", "setting", "dataset", "model")},
            "seed": self.seed,
            "source_mean_error": None,
            "prediction_timing": self.method.prediction_timing.value,
            "needs_source": self.method.source_need.value,
            "oracle": None if self.config.reset == "never" else f"reset={self.config.reset}",
            "paper": self.method.paper,
            "tuned": self.tuned,
            "domains": list(self.domains.domains),
            "stream_sha256": self.schedule.fingerprint(),
            **({"pauses": pauses} if (pauses := self.schedule.params.get("boundaries")) else {}),
            "weights_sha256": self.backbone.weights_sha256,
            "weights_origin": self.backbone.weights_origin,
            "code_sha256": code_sha256(self.method),
            "preprocess": self._preprocess(),
            "data": self.domains.describe(),
            "config": plain(self.config),
            "versions": self._versions(),
            "started": _utc(),
        }  # fmt: skip

    def _versions(self) -> dict[str, str]:
        names = list(PACKAGES)
        if self.backbone.segments:  # these modules come from packages of several names
            of = packages_distributions()
            names += [name for module in ("mmseg", "mmcv", "mmengine") for name in of.get(module, ())]
        return {**{name: version(name) for name in names}, "python": platform.python_version()}

    def notices(self) -> list[str]:
        """What is to be said of data and model before the run.

        Raises:
            ValueError: If a label map cannot be read.
        """
        found = [*data_notices(self.domains, self.config.dataset), *model_notices(self.domains, self.backbone)]
        return [*(notice.told for notice in found), *self.method.notices()]

    def _error_notices(self, result: Mapping[str, Any]) -> list[str]:
        """What is to be said of the run's error."""
        if result["status"] != "done" or result["mean_error"] is None:  # without labels there is no error
            return []
        method, error = result["method"], result["mean_error"]
        told = error_notice(error, self.domains, self.config.dataset, self.backbone, method)
        kind = "pixel error" if self.backbone.segments else "error"
        return [f"the {kind} of {method} is {error:.1f} %, and {told}"] if told else []

    def _preprocess(self) -> dict[str, Any]:
        told = {**self.backbone.preprocess.describe(), "image_size": self.backbone.image_size}
        source = self.backbone.source_preprocess
        return told if source is None else {**told, "source": source.describe()}

    def _outcome(self, monitor: AdaptationMonitor, device: torch.device) -> dict[str, Any]:
        """``device`` is where the stream ran, since Lightning moves the method to the CPU afterwards."""
        ready = monitor.last is not None  # before the first batch a method may not know its own size
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
        return {
            **monitor.tally.summary(),
            **visit_summary(whole_rows(self.folder / "batches.csv")),
            "trainable_parameters": self.method.trainable_parameters() if ready else None,
            "extra_parameters": self.method.extra_parameters() if ready else None,
            "peak_memory_bytes": peak_memory_bytes(),
            "matmul": torch.get_float32_matmul_precision(),
            "device": f"{name} ({torch.get_num_threads()} threads)" if device.type == "cpu" else name,
            "finished": _utc(),
        }


def _told(error: BaseException) -> str:
    """The error in words, with a remedy if there is one."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted before the end of a batch: run the same command again to resume from the last state"
    return str(error) if isinstance(error, Interrupted) else f"{type(error).__name__}: {error}"


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
