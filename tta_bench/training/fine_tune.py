"""Fine-tuning of a timm model on images of the source domain, for CIFAR or your own data."""

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

from tta_bench.console import say
from tta_bench.datasets.base import CleanImages, digest
from tta_bench.datasets.files.arrays import open_images
from tta_bench.datasets.files.cifar_binary import is_cifar_binary
from tta_bench.datasets.files.class_folders import left_out_facts, left_out_told
from tta_bench.functional.training_views import training_view
from tta_bench.loggers.wandb_run import close_wandb, wandb_mode
from tta_bench.models.loading.load_model import input_size, load_network
from tta_bench.models.preprocess import enlarge
from tta_bench.training.classifier import ClassifierTraining
from tta_bench.training.core import EpochOrder, Training, check_output, check_positive

HELD_OUT = 10  # every tenth image is for validation
CROP = 0.5  # smallest fraction of an image's area in a training view


@dataclass(frozen=True)
class FineTuneRecipe:
    """Everything that determines the weights.

    Args:
        images: A folder of class folders, the folder of CIFAR's binary version, a ``.npz`` or a ``.npy`` file.
        labels: The ``.npy`` file of labels for a ``.npy`` file of images.
        split: Split of a ``.npz`` file or of CIFAR.
        classes: How class folders are mapped to labels; see ``label_map``.
        image_size: Side of the square to which images of folders are cropped; None uses the network's.
        model: A timm model by its full tag.
        checkpoint: Local weights of the model; without it, timm downloads.
        checkpoint_key: Key of the state dict in the checkpoint; None finds one, as in ``load_model``.
        config: A description of the model instead of its name.
        seed: Seed of the new head, the order, the views and the choice of held-out images.
        epochs: Number of passes over the images.
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
    """Cross-entropy training of all weights, on views of the images that are new in every epoch.

    Args:
        network: Maps normalised images (B, 3, S, S) to logits (B, K).
        size: Side S of the images; smaller ones are enlarged. None leaves them unchanged.
        settings: Further arguments of ``ClassifierTraining``.
    """

    def __init__(self, network: Any, size: int | None, *settings: Any) -> None:
        super().__init__(network, *settings)
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, 3, H, W) in [0, 1]."""
        return super().forward(enlarge(images, self.size))

    def training_view(self, images: Tensor) -> Tensor:
        """Crop each image at random, and mirror half of them."""
        return training_view(images, self.rng, crop=CROP)


class _Rows(Dataset[tuple[Tensor, int]]):
    """A subset of the images, as tensors (3, H, W) uint8."""

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
    """Fine-tune, then write the weights (.safetensors) and the description (.yaml) for ``model=local``.

    Until it is finished, its last state is stored in ``<output>.training/``, and the same call resumes from it.

    Args:
        recipe: Everything that determines the weights.
        output: File of the weights.
        console: Where to print.
        num_workers: Number of processes that decode images, which does not change the weights.
        wandb: Whether to log to Weights & Biases, offline if it has no API key.

    Raises:
        ValueError: If a file or a setting is wrong, or the output or a training of another recipe exists.
        FileNotFoundError: If a path does not exist.
        WriteError: If the files cannot be written.
    """
    check_output(output)
    L.seed_everything(recipe.seed, verbose=False)
    card, network, _ = load_network(recipe.model, recipe.checkpoint, recipe.config, recipe.checkpoint_key)
    images = open_training_images(recipe, input_size(network, card))
    for told in left_out_told(left_out_facts([images])):
        say(console, f"note: {told}", "yellow")
    _prepare(network, getattr(images, "num_classes", int(images.labels.max()) + 1))
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


def open_training_images(recipe: FineTuneRecipe, size: int | None) -> CleanImages:
    """The images of a recipe; those of folders cut to the recipe's size, or to ``size``, the network's."""
    path = Path(recipe.images).expanduser()
    if recipe.image_size is not None or not path.is_dir() or is_cifar_binary(path):
        size = recipe.image_size
    images = open_images(
        path,
        recipe.labels,
        split=recipe.split,
        image_size=size,
        classes=recipe.classes,
        keys=("--images", "--labels"),
    )
    if len(images) < HELD_OUT:
        raise ValueError(f"{path} holds {len(images)} images, but at least {HELD_OUT} are needed")
    return images


def _prepare(network: Any, num_classes: int) -> None:
    """Make the network trainable, with a new head if the number of classes differs."""
    if not hasattr(network, "reset_classifier"):
        raise ValueError(f"only timm models can be fine-tuned, which {type(network).__name__} is not")
    if network.num_classes != num_classes:
        network.reset_classifier(num_classes)
    network.train()


def _wandb_logger(recipe: FineTuneRecipe, output: Path) -> WandbLogger:
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbLogger(
        project="tta_bench", name=output.stem, job_type="source fine-tune", config=asdict(recipe),
        save_dir=output.parent, offline=wandb_mode() != "online",
    )  # fmt: skip
