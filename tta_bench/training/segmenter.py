"""Training of a small SegFormer from scratch, only on images of the source domain."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

import lightning.pytorch as L
import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassJaccardIndex

from tta_bench.config.compose import build, compose_stream, require
from tta_bench.console import progress_bar
from tta_bench.datasets.base import (
    DomainDataset,
    SegmentedImages,
    SegmentedSubset,
    digest,
    has_label_maps,
    label_digest,
)
from tta_bench.datasets.procedural.street_scenes import CLASSES
from tta_bench.datasets.segmentation.streets_c import StreetScenes
from tta_bench.functional.segmentation import IGNORE, resized
from tta_bench.models.loading.segformer import SegFormer, require_mmseg, segformer
from tta_bench.training.core import MEAN, STD, EpochOrder, SourceTraining, Training, check_positive, half

BATCH_SIZE = 8


class SegmentationTraining(SourceTraining):
    """Cross-entropy training of a SegFormer on all labelled pixels.

    Half of the images are mirrored, and brightness, contrast and saturation are changed, as in mmsegmentation's
    recipes for Cityscapes.

    Args:
        network: Encoder and head.
        lr: Peak learning rate.
        total_steps: Number of optimizer steps of the whole training.
        seed: Seed of the mirroring and the colour changes.
    """

    def __init__(self, network: SegFormer, lr: float, total_steps: int, seed: int) -> None:
        super().__init__(nn.Sequential(network.backbone, network.decode_head), lr, total_steps, seed)
        self.network = network
        self.iou = MulticlassJaccardIndex(network.decode_head.num_classes, average="macro", ignore_index=IGNORE)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Compute the cross-entropy of a batch of images (B, 3, H, W) uint8 and labels (B, H, W)."""
        images, labels = batch
        mirrored = torch.rand(len(images)) < 0.5
        images[mirrored], labels[mirrored] = images[mirrored].flip(-1), labels[mirrored].flip(-1)
        scores = resized(self(distorted(images) / 255), (labels.shape[1], labels.shape[2]))
        return F.cross_entropy(scores, labels.long(), ignore_index=IGNORE)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add one batch to the IoU."""
        scores = resized(self(batch[0].float() / 255), (batch[1].shape[1], batch[1].shape[2]))
        self.iou.update(scores, batch[1].long())

    def on_validation_epoch_end(self) -> None:
        """Log the mean IoU over the classes that occur, in percent."""
        self.log("mean IoU", 100 * self.iou.compute(), prog_bar=True)
        self.iou.reset()


def distorted(images: Tensor) -> Tensor:
    """Change contrast, saturation and brightness of each image (B, 3, H, W) in 0..255 at random.

    Source: mmsegmentation, ``PhotoMetricDistortion``, without its change of hue.
    """
    contrast, saturation, brightness = torch.rand(3, len(images), 1, 1, 1, device=images.device)
    grey = images.float().mean(dim=1, keepdim=True)
    saturated = grey + (0.5 + saturation) * (images - grey)
    return ((0.5 + contrast) * saturated + 64 * (brightness - 0.5)).clamp(0, 255)


class _Examples(Dataset[tuple[Tensor, Tensor]]):
    """Images (3, H, W) uint8 and label maps (H, W) uint8."""

    def __init__(self, images: SegmentedImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = torch.tensor(self.images[index]), torch.tensor(self.images.label_map(index))  # files: read-only
        return image.permute(2, 0, 1), labels


def train_segformer(
    train: SegmentedImages,
    validation: SegmentedImages,
    classes: Sequence[str],
    output: Path,
    *,
    command: str,
    seed: int,
    epochs: int,
    lr: float,
    batch_size: int = BATCH_SIZE,
    embed_dims: int = 32,
    channels: int = 256,
    console: Console,
) -> None:
    """Train a SegFormer-B0, or a narrower one, and write its weights and a .yaml with the facts.

    Args:
        train: Training images, all of one size.
        validation: Other images, for the mean IoU.
        classes: Names of the classes.
        output: File of the weights (.safetensors, half precision, mmsegmentation's names).
        command: The command, for the facts.
        seed: Seed of the initial weights, the order of the images and their mirroring.
        epochs: Passes over the training images.
        lr: Peak learning rate.
        batch_size: Images per step.
        embed_dims: Width of the first stage; 32 in B0.
        channels: Width of the head; 256 in B0.
        console: Where to print.

    Raises:
        ValueError: As for ``Training``, or if mmsegmentation is missing, or there are too few images for a batch.
        KeyboardInterrupt: If the training was interrupted; the same call resumes it.
    """
    check_positive(epochs=epochs, lr=lr, batch_size=batch_size)
    if len(train) < batch_size:
        raise ValueError(f"{len(train)} training images are too few for a batch of {batch_size}: lower --batch-size")
    kwargs = {"num_classes": len(classes), "embed_dims": embed_dims, "channels": channels}
    recipe = {**kwargs, "data": train.describe(), "digest": digest(train), "labels": label_digest(train)}
    recipe |= {"seed": seed, "epochs": epochs, "lr": lr, "batch_size": batch_size}
    training = Training(output, recipe, console)
    L.seed_everything(seed, verbose=False)
    network = segformer(len(classes), embed_dims=embed_dims, channels=channels)
    loader = DataLoader(_Examples(train), batch_size, sampler=EpochOrder(len(train), seed), drop_last=True)
    held_out = DataLoader(_Examples(validation), batch_size)
    module = SegmentationTraining(network, lr, len(loader) * epochs, seed)
    trainer = training.fit(module, loader, held_out, epochs=epochs, metric="mean IoU")
    state = half(network.state_dict())
    network.load_state_dict(state)  # the rounded weights, as a user will load them
    iou = trainer.validate(module, held_out, verbose=False)[0]["mean IoU"]
    training.finish(
        state,
        {"architecture": "segformer", "kwargs": kwargs, "mean": list(MEAN), "std": list(STD), "classes": list(classes)},
        [
            f"Trained by: {command}",
            f"Mean IoU of these weights on {len(validation)} images of the source domain: {iou:.2f} %",
        ],
        f"mean IoU {iou:.2f} % on validation",
    )


def train_streets_segformer(
    output: Path, *, seed: int, epochs: int, num_images: int, lr: float, console: Console
) -> None:
    """Train the source model of streets_c: a SegFormer-B0 of half the width, on streets by day.

    Args:
        output: File of the weights, as for ``train_segformer``.
        seed: Seed of the initial weights, the order of the images and their mirroring.
        epochs: Passes over the training images.
        num_images: Number of training images, starting at index 0.
        lr: Peak learning rate.
        console: Where to print.

    Raises:
        ValueError: As for ``train_segformer``.
    """
    command = (
        f"tta-bench source train-segmenter dataset=streets_c --output {output.name} --seed {seed} --epochs {epochs} "
        f"--num-images {num_images} --lr {lr}"
    )
    train_segformer(
        _Drawn("train", num_images, console), _Drawn("validation", 100, console), CLASSES, output,
        command=command, seed=seed, epochs=epochs, lr=lr, embed_dims=16, channels=64, console=console,
    )  # fmt: skip


def train_on_source_domain(
    words: Sequence[str],
    output: Path,
    *,
    seed: int,
    epochs: int,
    num_images: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    console: Console,
) -> None:
    """Train a source model on the source domain of a data set with label maps.

    Every tenth image is held out for validation. The model is a SegFormer-B0, or for streets_c that of the package.

    Args:
        words: Overrides that choose the data set, such as ``dataset=segmentation_folder``.
        output: File of the weights, as for ``train_segformer``.
        seed: Seed of the initial weights, the order of the images and their mirroring.
        epochs: Passes over the training images.
        num_images: Number of training images of streets_c; None uses 2400. Other data sets always use all images.
        lr: Peak learning rate; None uses 3e-3 for streets_c and 1e-3 for others (ours).
        batch_size: Images per step; None uses 8.
        console: Where to print.

    Raises:
        ConfigError: If an override is wrong.
        ValueError: As for ``train_segformer``, or if the data set has no label maps, or no source domain.
    """
    require_mmseg()
    composed = compose_stream(words)
    require(composed.config)
    if composed.choices["dataset"] == "streets_c":
        if batch_size is not None:
            raise ValueError(f"--batch-size is for your own data: the model of streets_c uses {BATCH_SIZE}")
        train_streets_segformer(
            output, seed=seed, epochs=epochs, num_images=num_images or 2400, lr=3e-3 if lr is None else lr,
            console=console,
        )  # fmt: skip
        return
    domains: DomainDataset = build(composed.config.dataset)
    if not has_label_maps(domains):
        raise ValueError(f"{domains.name} has a class per image: train a model with source fine-tune instead")
    if num_images is not None:
        raise ValueError(f"--num-images is only for streets_c: all source images of {domains.name} are used")
    images, lr, batch_size = domains.source_images(), 1e-3 if lr is None else lr, batch_size or BATCH_SIZE
    held_out = range(0, len(images), 10)
    learned = [i for i in range(len(images)) if i not in held_out]
    options = f"--output {output.name} --seed {seed} --epochs {epochs} --lr {lr} --batch-size {batch_size}"
    train_segformer(
        SegmentedSubset(images, learned), SegmentedSubset(images, held_out), domains.classes, output,
        command=f"tta-bench source train-segmenter {' '.join(words)} {options}", seed=seed, epochs=epochs, lr=lr,
        batch_size=batch_size, console=console,
    )  # fmt: skip


class _Drawn:
    """Streets by day, all rendered beforehand: rendering one takes longer than a training step on it."""

    def __init__(self, split: str, num_images: int, console: Console) -> None:
        self.labels = np.zeros(num_images, dtype=np.int64)
        with get_context("spawn").Pool() as pool, progress_bar(console) as bar:
            jobs = pool.imap(_draw, ((split, i) for i in range(num_images)), chunksize=16)
            self.drawn = list(bar.track(jobs, num_images, description=f"rendering {split}"))

    def __len__(self) -> int:
        return len(self.drawn)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.drawn[index][0]

    def label_map(self, index: int) -> np.ndarray:
        return self.drawn[index][1]

    def describe(self) -> str:
        return f"procedural streets ({len(self)} images)"


def _draw(job: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    split, index = job
    images = StreetScenes(split, index + 1)
    return images[index], images.label_map(index)
