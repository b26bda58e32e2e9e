"""Train the source model of shapes_c from scratch, on clean images only."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import timm
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from tta_bench.console import progress_bar
from tta_bench.datasets.procedural.shapes import CLASSES, label, render
from tta_bench.training.core import MEAN, STD, EpochOrder, SourceTraining, Training, check_positive, half

BATCH_SIZE = 128
NUM_VALIDATION = NUM_TEST = 2000


class ClassifierTraining(SourceTraining):
    """Cross-entropy training of a classifier on uint8 images; arguments as for ``SourceTraining``.

    Args:
        network: Takes normalised images (B, 3, H, W) and gives logits (B, K).
        num_classes: K.
        settings: Further arguments of ``SourceTraining``.
    """

    def __init__(self, network: nn.Module, num_classes: int, *settings: object, **more: object) -> None:
        super().__init__(network, *settings, **more)  # type: ignore[arg-type]  # checked by the base class
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")

    def training_view(self, images: Tensor) -> Tensor:
        """What is shown of images (B, 3, H, W) in [0, 1] in training; here the images themselves."""
        return images

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of one batch."""
        loss = F.cross_entropy(self(self.training_view(batch[0].float() / 255)), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Count what is right in one batch."""
        self.accuracy.update(self(batch[0].float() / 255), batch[1])

    def on_validation_epoch_end(self) -> None:
        """Accuracy over all batches, in percent."""
        self.log("accuracy", 100 * self.accuracy.compute(), prog_bar=True)
        self.accuracy.reset()


def train_shapes_vit(
    output: Path, *, console: Console, seed: int = 0, epochs: int = 8, num_images: int = 40_000, lr: float = 1.5e-3
) -> None:
    """Train ``shapes_vit`` and write its weights (.safetensors, half precision) and a .yaml with the facts.

    Args:
        output: File of the weights.
        console: Where to print.
        seed: Seed of the initial weights and of the order of the images.
        epochs: Passes over the training images.
        num_images: Training images, from index 0 on.
        lr: Peak learning rate.

    Raises:
        ValueError: As for ``Training``, or if a number is not above 0.
        KeyboardInterrupt: If the training was interrupted; the same call resumes it.
    """
    check_positive(epochs=epochs, num_images=num_images, lr=lr)
    recipe = {"model": "shapes_vit", "seed": seed, "epochs": epochs, "num_images": num_images, "lr": lr}
    training = Training(output, recipe, console)
    L.seed_everything(seed, verbose=False)
    network = timm.create_model("shapes_vit")
    parts = {"train": num_images, "validation": NUM_VALIDATION, "test": NUM_TEST}
    train, validation, test = (_rendered(split, count, console) for split, count in parts.items())
    batch = min(BATCH_SIZE, num_images)
    loader = DataLoader(train, batch, sampler=EpochOrder(num_images, seed), drop_last=True)
    module = ClassifierTraining(network, len(CLASSES), lr, len(loader) * epochs, seed)
    training.fit(module, loader, DataLoader(validation, 500), epochs=epochs, metric="accuracy")
    finish_embedded(training, module, DataLoader(test, 500), recipe, {"architecture": "shapes_vit", "kwargs": {}})


def finish_embedded(
    training: Training,
    module: ClassifierTraining,
    test: DataLoader[Any],
    recipe: Mapping[str, Any],
    card: Mapping[str, Any],
) -> None:
    """Write the weights of a model of the package in half precision, with their accuracy on test images.

    Args:
        training: The training.
        module: What it trained.
        test: Clean test images (B, 3, H, W) uint8 and their labels (B,).
        recipe: The name of the model and the options of ``tta-bench source train``.
        card: Architecture and its arguments.

    Raises:
        WriteError: If the disk does not take the files.
    """
    state = half(module.model.state_dict())
    module.model.load_state_dict(state)  # the rounded weights, computed in float32, as a user will run them
    accuracy, num_test = _accuracy(module, test), len(test.dataset)  # type: ignore[arg-type]  # all of ours have a length
    options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in recipe.items() if key != "model")
    training.finish(
        state,
        {**card, "mean": list(MEAN), "std": list(STD)},
        [
            f"Trained by: tta-bench source train {recipe['model']} --output {training.output.name} {options}",
            f"Clean accuracy of these weights on {num_test:,} test images: {accuracy:.2f} %",
        ],
        f"clean accuracy {accuracy:.2f} %",
    )


@torch.no_grad()
def _accuracy(module: ClassifierTraining, loader: DataLoader[Any]) -> float:
    module.eval()
    for images, labels in loader:
        module.accuracy.update(module(images.float() / 255), labels)
    return 100 * module.accuracy.compute().item()


def _rendered(split: str, num_images: int, console: Console) -> TensorDataset:
    with get_context("spawn").Pool() as pool, progress_bar(console) as bar:
        jobs = pool.imap(_render, ((split, i) for i in range(num_images)), chunksize=256)
        images = np.stack(list(bar.track(jobs, num_images, description=f"rendering {split}")))
    labels = torch.tensor([label(i) for i in range(num_images)])
    return TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels)


def _render(job: tuple[str, int]) -> np.ndarray:
    return render(*job)
