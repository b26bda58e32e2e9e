"""Train the source model of shapes_c from scratch, on clean images only."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

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


def train_shapes_vit(output: Path, *, seed: int, epochs: int, num_images: int, lr: float, console: Console) -> None:
    """Train ``shapes_vit`` and write its weights (.safetensors, half precision) and a .yaml with the facts.

    Args:
        output: File of the weights.
        seed: Seed of the initial weights and of the order of the images.
        epochs: Passes over the training images.
        num_images: Training images, from index 0 on.
        lr: Peak learning rate.
        console: Where to print.

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
    trainer = training.fit(module, loader, DataLoader(validation, 500), epochs=epochs, metric="accuracy")
    state = half(network.state_dict())
    network.load_state_dict(state)  # the rounded weights, as a user will load them
    accuracy = trainer.validate(module, DataLoader(test, 500), verbose=False)[0]["accuracy"]
    options = f"--output {output.name} --seed {seed} --epochs {epochs} --num-images {num_images} --lr {lr}"
    training.finish(
        state,
        {"architecture": "shapes_vit", "kwargs": {}, "mean": list(MEAN), "std": list(STD)},
        [
            f"Trained by: tta-bench source train shapes_vit {options}",
            f"Clean accuracy of these weights on {NUM_TEST:,} test images: {accuracy:.2f} %",
        ],
        f"clean accuracy {accuracy:.2f} %",
    )


def _rendered(split: str, num_images: int, console: Console) -> TensorDataset:
    with get_context("spawn").Pool() as pool, progress_bar(console) as bar:
        jobs = pool.imap(_render, ((split, i) for i in range(num_images)), chunksize=256)
        images = np.stack(list(bar.track(jobs, num_images, description=f"rendering {split}")))
    labels = torch.tensor([label(i) for i in range(num_images)])
    return TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels)


def _render(job: tuple[str, int]) -> np.ndarray:
    return render(*job)
