"""Shared parts of all trainings of source models: resuming from the last state, and the files that they write."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from tta_bench.console import say
from tta_bench.files import write_json, writing
from tta_bench.models.backbones.base import Normalize
from tta_bench.quiet import quiet_lightning

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


class SourceTraining(L.LightningModule):
    """AdamW with a one-cycle schedule; subclasses implement the training and validation steps.

    All random numbers of an epoch depend only on the seed and the number of the epoch, so that a resumed training ends
    with the weights of an uninterrupted one.

    Args:
        network: Network to train; takes normalised images (B, 3, H, W).
        lr: Peak learning rate.
        total_steps: Number of optimizer steps of the whole training.
        seed: Seed of the random numbers of all epochs.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.
    """

    rng: torch.Generator

    def __init__(
        self,
        network: torch.nn.Module,
        lr: float,
        total_steps: int,
        seed: int,
        mean: tuple[float, ...] = MEAN,
        std: tuple[float, ...] = STD,
    ) -> None:
        super().__init__()
        self.model, self.lr, self.total_steps, self.seed = network, lr, total_steps, seed
        self.normalize = Normalize(mean, std)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores of images (B, 3, H, W) in [0, 1]."""
        return self.model(self.normalize(images))

    def on_train_epoch_start(self) -> None:
        """Seed the epoch, so that its views and dropout do not depend on earlier interruptions."""
        seed = int(np.random.default_rng([self.seed, self.current_epoch]).integers(2**31))
        torch.manual_seed(seed)
        self.rng = torch.Generator().manual_seed(seed)

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW, one cycle over all steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.05)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=self.total_steps, pct_start=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class EpochOrder(Sampler[int]):
    """A random order per epoch; Lightning sets the epoch, also when a training is resumed.

    Args:
        count: Number of examples.
        seed: Seed of all orders.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng([self.seed, self.epoch]).permutation(self.count).tolist())


class _EpochLines(L.Callback):
    """Prints one line per epoch, which remains on the screen and in log files."""

    def __init__(self, console: Console, metric: str) -> None:
        self.console, self.metric = console, metric

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the metric, which the module has logged before."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            value = trainer.callback_metrics[self.metric].item()
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            say(self.console, f"{epoch}: {self.metric} {value:.1f} % on validation")


class _KeepLast(Checkpoint):
    """Saves the state after each epoch to one file; Lightning runs checkpoints after all other callbacks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Replace the file atomically."""
        draft = self.path.with_suffix(".part")
        with writing(self.path):
            trainer.save_checkpoint(draft)
            draft.replace(self.path)


class Training:
    """One training, from its command to the files for ``model=local``.

    Until it is finished, its last state is stored in ``<output>.training/``, and the same command resumes from it.

    Args:
        output: File of the weights (.safetensors); a .yaml with the description of the model is written beside it.
        recipe: Everything that determines the weights, as plain values.
        console: Where to print.

    Raises:
        ValueError: If ``output`` does not end in .safetensors or exists, or its state belongs to another recipe.
        WriteError: If the files cannot be written.
    """

    def __init__(self, output: Path, recipe: Mapping[str, Any], console: Console) -> None:
        check_output(output)
        self.output, self.console, self.started = output, console, time.perf_counter()
        self.folder = output.with_suffix(".training")
        self.last = self.folder / "last.ckpt"
        file = self.folder / "recipe.json"
        if not file.exists():
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_json(file, recipe)
            return
        there = json.loads(file.read_text(encoding="utf-8"))
        for key, value in json.loads(json.dumps(recipe)).items():
            if there.get(key) != value:
                raise ValueError(
                    f"{self.folder} belongs to a training with {key} {there.get(key)!r} instead of {value!r}: "
                    "remove it, or choose another --output"
                )

    def fit(
        self,
        module: SourceTraining,
        loader: DataLoader[Any],
        validation: DataLoader[Any],
        *,
        epochs: int,
        metric: str,
        precision: Literal["32-true", "bf16-mixed"] = "32-true",
        loggers: Sequence[Logger] = (),
    ) -> L.Trainer:
        """Train to the end, from the last state if there is one.

        Args:
            module: Module to train.
            loader: Training batches, ordered by an ``EpochOrder``.
            validation: Validation batches.
            epochs: Number of passes over the training batches.
            metric: Name of the metric, in percent, that the module logs in validation.
            precision: Lightning's name of the precision.
            loggers: Loggers for the metrics, besides the console.

        Returns:
            The trainer, for a final validation.

        Raises:
            KeyboardInterrupt: If the training was interrupted; its state is on disk.
        """
        quiet_lightning()
        trainer = L.Trainer(
            max_epochs=epochs,
            gradient_clip_val=1.0 if module.automatic_optimization else None,  # otherwise the module clips
            precision=precision,
            devices=1,
            callbacks=[_EpochLines(self.console, metric), _KeepLast(self.last)],
            logger=list(loggers),
            enable_progress_bar=self.console.is_terminal,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        goes_on = self.last.exists()
        if goes_on:
            say(self.console, f"resuming from {self.last}", "dim")
        trainer.fit(module, loader, validation, ckpt_path=self.last if goes_on else None)
        if trainer.interrupted:  # Lightning returns as if the training had finished
            raise KeyboardInterrupt
        return trainer

    def finish(self, state: Mapping[str, Tensor], card: Mapping[str, Any], facts: Sequence[str], outcome: str) -> None:
        """Write the weights and their description, and remove the state.

        Args:
            state: The weights.
            card: Description of the model for ``model=local``.
            facts: Lines of the comment above the card: the command, and the score of the weights.
            outcome: Message to print.

        Raises:
            WriteError: If the files cannot be written.
        """
        took = f"torch {torch.__version__}, {time.perf_counter() - self.started:.0f} seconds since the last start"
        text = "".join(f"# {line}\n" for line in [*facts, took]) + OmegaConf.to_yaml(OmegaConf.create(dict(card)))
        described = self.output.with_suffix(".yaml")
        with writing(self.output):
            described.write_text(text, encoding="utf-8")
            save_file({key: value.detach().cpu().contiguous() for key, value in state.items()}, self.output)
            shutil.rmtree(self.folder)
        use = f"model=local model.checkpoint={self.output} model.config={described}"
        say(self.console, f"{outcome}; {use}")


def check_output(output: Path) -> None:
    """Check that a file of weights has the right suffix and does not exist.

    Raises:
        ValueError: If it does not end in .safetensors, or exists.
    """
    if output.suffix != ".safetensors":
        raise ValueError(f"--output must end in .safetensors, got {output}")
    if output.exists():
        raise ValueError(f"{output} already exists: remove it, or choose another --output")


def check_positive(**settings: float | None) -> None:
    """Check that settings are positive.

    Raises:
        ValueError: If one is not; the message names its option.
    """
    for key, value in settings.items():
        if value is not None and value <= 0:
            raise ValueError(f"--{key.replace('_', '-')} must be above 0, got {value}")


def half(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights to half precision, keeping integer counters."""
    return {key: value.half() if value.is_floating_point() else value for key, value in state.items()}
