"""The Lightning Trainer of a run, and the callbacks that a user adds to it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta

import lightning.pytorch as L
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import DictConfig

from tta_bench.config.compose import build, plain
from tta_bench.config.words import ConfigError
from tta_bench.models.precision import set_matmul
from tta_bench.quiet import quiet_lightning
from tta_bench.ranks import is_single_device


def make_trainer(config: DictConfig, callbacks: Sequence[L.Callback] = ()) -> L.Trainer:
    """Build the Trainer of a configuration, and set the precision of its matrix products.

    Args:
        config: Arguments of Lightning's Trainer, and ``matmul`` as for ``set_matmul``.
        callbacks: Its callbacks, in the order in which they are called.

    Raises:
        ConfigError: If there is no such device, the device lacks the precision, or a plugin raises.
    """
    quiet_lightning()
    settings = plain(config)
    matmul, wanted = settings.pop("matmul"), settings["precision"]
    try:
        if not is_single_device(settings["devices"]):  # notice within a minute that a rank has died
            settings["strategy"] = DDPStrategy(timeout=timedelta(minutes=1))
        else:  # otherwise Lightning would take the tasks of a cluster job for ranks of this run
            environment = LightningEnvironment()
            environment.set_global_rank(0)
            settings["plugins"] = [environment]
        warnings.filterwarnings("ignore", message=".*AMP with fp16 is not supported on CPU")  # refused below
        trainer = L.Trainer(
            **settings,
            inference_mode=False,
            callbacks=list(callbacks),
            logger=False,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except Exception as error:  # a missing device, or anything that a plugin raises
        raise ConfigError(f"the trainer cannot be created: {_first_line(error)}") from error
    device, precision = trainer.strategy.root_device, trainer.precision_plugin.precision
    if precision != wanted:  # Lightning takes bf16-mixed instead of 16-mixed on a CPU
        raise ConfigError(f"trainer.precision={wanted} does not run on {device.type}: use {precision}")
    set_matmul(matmul, device)
    return trainer


def own_callbacks(config: DictConfig) -> list[L.Callback]:
    """Build the user's callbacks.

    Args:
        config: A node for each, by name.

    Raises:
        ConfigError: If one cannot be built.
    """
    made = []
    for name, node in config.items():
        try:
            made.append(build(node))
        except Exception as error:  # a user's class can raise anything
            raise ConfigError(f"the callback {name} cannot be created: {_first_line(error)}") from error
    return made


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
