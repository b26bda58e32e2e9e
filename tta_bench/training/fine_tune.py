"""Fine-tune a timm model on images of the source domain: a source model for CIFAR, or for one's own data."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger, WandbLogger
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tta_bench.datasets.base import CleanImages, digest
from tta_bench.datasets.files.arrays import open_images
from tta_bench.datasets.files.cifar_binary import is_cifar_binary
from tta_bench.functional.training_views import training_view
from tta_bench.loggers.wandb_run import close_wandb, wandb_mode
from tta_bench.models.loading.load_model import input_size, load_network
from tta_bench.models.preprocess import enlarge
from tta_bench.training.classifier import ClassifierTraining
from tta_bench.training.core import EpochOrder, Training, check_output, check_positive

HELD_OUT = 10  # one image in so many is for validation
CROP = 0.5  # smallest share of an image's area that a training view keeps


@dataclass(frozen=True)
class FineTuneRecipe:
    """All that determines the weights.

    Args:
        images: A folder of class folders, the folder of CIFAR's binary version, a ``.npz`` or a ``.npy`` file.
        labels: The labels of a ``.npy`` file.
        split: Which part of a ``.npz`` file or of CIFAR.
        classes: What gives class folders their labels, as described at ``label_map``.
        image_size: Side of the square that images of folders are cut to; None takes the network's.
        model: A timm model by its full tag.
        checkpoint: Local weights of the model; without them timm downloads.
        checkpoint_key: Which of several state dicts in the checkpoint; None chooses as ``load_model`` does.
        config: A description of the model instead of its name.
        seed: Seed of the new head, of the order, of the views and of which images are held out.
        epochs: Passes over the images.
        lr: Peak learning rate of AdamW's one cycle.
        batch_size: Images per step.
    """

    images: str
    labels: str | None
    split: str
    classes: str | None
    image_size: int | None
    model: str | None
    checkpoint: str | None
    checkpoint_key: str | None
    config: str | None
    seed: int
    epochs: int
    lr: float
    batch_size: int

    def __post_init__(self) -> None:
        check_positive(epochs=self.epochs, lr=self.lr, batch_size=self.batch_size)


class FineTuning(ClassifierTraining):
    """Cross-entropy training of all weights, on views of the images that are drawn anew in every epoch.

    Args:
        network: Takes normalised images (B, 3, S, S) and gives logits (B, K).
        size: Side S of the images; smaller ones are enlarged. None takes them as they are.
        settings: Further arguments of ``ClassifierTraining``.
    """

    def __init__(self, network: Any, size: int | None, *settings: Any) -> None:
        super().__init__(network, *settings)
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] -> logits (B, K)."""
        return super().forward(enlarge(images, self.size))

    def training_view(self, images: Tensor) -> Tensor:
        """A crop of each image, half of them mirrored."""
        return training_view(images, self.rng, crop=CROP)


class _Rows(Dataset[tuple[Tensor, int]]):
    """Some of the images, as tensors (3, H, W) uint8."""

    def __init__(self, images: CleanImages, rows: np.ndarray) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        row = int(self.rows[i])
        pixels = np.ascontiguousarray(self.images[row].transpose(2, 0, 1))
        return torch.from_numpy(pixels), int(self.images.labels[row])


def fine_tune(
    recipe: FineTuneRecipe, output: Path, console: Console, *, num_workers: int = 0, wandb: bool = False
) -> None:
    """Train, then write the weights (.safetensors) and the description (.yaml) that ``model=local`` takes.

    Until it is finished, its last state lies in ``<output>.training/``, and the same call goes on from there.

    Args:
        recipe: What determines the weights.
        output: File of the weights.
        console: Where to print.
        num_workers: Processes that decode images; they change nothing.
        wandb: Whether to log to Weights & Biases, offline if it knows no key.

    Raises:
        ValueError: If a file or a setting is wrong, the output is there, or a training of another recipe is.
        FileNotFoundError: If a path does not exist.
        WriteError: If the files cannot be written.
    """
    check_output(output)
    L.seed_everything(recipe.seed, verbose=False)
    card, network, _ = load_network(recipe.model, recipe.checkpoint, recipe.config, recipe.checkpoint_key)
    images = _open(recipe, input_size(network, card))
    _prepare(network, int(images.labels.max()) + 1)
    training = Training(output, {**asdict(recipe), "data": images.describe(), "digest": digest(images)}, console)
    rows = np.random.default_rng(recipe.seed).permutation(len(images))
    held_out, rest = _Rows(images, rows[::HELD_OUT]), _Rows(images, np.delete(rows, np.s_[::HELD_OUT]))
    order, batch = EpochOrder(len(rest), recipe.seed), min(recipe.batch_size, len(rest))
    loader = DataLoader(rest, batch, sampler=order, drop_last=True, num_workers=num_workers)
    validation = DataLoader(held_out, recipe.batch_size, num_workers=num_workers)
    size = getattr(getattr(network, "patch_embed", None), "img_size", None)
    module = FineTuning(
        network, size and size[0], network.num_classes, recipe.lr, len(loader) * recipe.epochs, recipe.seed,
        tuple(card["mean"]), tuple(card["std"]),
    )  # fmt: skip
    loggers: list[Logger] = [_wandb_logger(recipe, output)] if wandb else []
    trainer = training.fit(module, loader, validation, epochs=recipe.epochs, metric="accuracy", loggers=loggers)
    accuracy = trainer.validate(module, validation, verbose=False)[0]["accuracy"]
    close_wandb(loggers, failed=False)
    kwargs = {**card["kwargs"], "num_classes": network.num_classes}
    training.finish(
        network.state_dict(),
        {"architecture": card["architecture"], "kwargs": kwargs, "mean": card["mean"], "std": card["std"]},
        [
            f"Fine-tuned by tta-bench source fine-tune: {json.dumps(asdict(recipe))}",
            f"Accuracy on the {len(held_out)} held-out images: {accuracy:.2f} %",
        ],
        f"accuracy {accuracy:.2f} % on held-out images",
    )


def _open(recipe: FineTuneRecipe, size: int | None) -> CleanImages:
    path = Path(recipe.images).expanduser()
    if recipe.image_size is not None or not path.is_dir() or is_cifar_binary(path):
        size = recipe.image_size
    images = open_images(path, recipe.labels, split=recipe.split, image_size=size, classes=recipe.classes)
    if len(images) < HELD_OUT:
        raise ValueError(f"{path} holds {len(images)} images: at least {HELD_OUT} are needed")
    return images


def _prepare(network: Any, num_classes: int) -> None:
    """Make the network trainable, with a new head if it has one of other classes."""
    if not hasattr(network, "reset_classifier"):
        raise ValueError(f"only timm models can be fine-tuned, and {type(network).__name__} is not one")
    if network.num_classes != num_classes:
        network.reset_classifier(num_classes)
    network.train()


def _wandb_logger(recipe: FineTuneRecipe, output: Path) -> WandbLogger:
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbLogger(
        project="tta_bench", name=output.stem, job_type="source fine-tune", config=asdict(recipe),
        save_dir=output.parent, offline=wandb_mode() != "online",
    )  # fmt: skip
