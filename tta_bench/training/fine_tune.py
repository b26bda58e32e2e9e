"""Fine-tune a timm model on images of the source domain: a source model for CIFAR, or for one's own data."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import OmegaConf
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

from tta_bench.datasets.base import CleanImages, digest
from tta_bench.datasets.files.arrays import open_images
from tta_bench.datasets.files.cifar_binary import is_cifar_binary
from tta_bench.files import write_json, writing
from tta_bench.functional.training_views import training_view
from tta_bench.loggers.wandb_run import close_wandb, wandb_mode
from tta_bench.models.loading.load_model import input_size, load_network
from tta_bench.models.preprocess import enlarge
from tta_bench.quiet import quiet_lightning
from tta_bench.training.classifier import EpochLines, SourceTraining

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
    config: str | None
    seed: int
    epochs: int
    lr: float
    batch_size: int

    def __post_init__(self) -> None:
        for key in ("epochs", "lr", "batch_size"):
            if getattr(self, key) <= 0:
                raise ValueError(f"--{key.replace('_', '-')} must be above 0, got {getattr(self, key)}")


class FineTuning(SourceTraining):
    """Cross-entropy training of all weights, on views of the images that are drawn anew in every epoch.

    Args:
        network: Takes normalised images (B, 3, S, S) and gives logits (B, K).
        recipe: Learning rate and seed.
        total_steps: Optimizer steps of the whole training.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.
        size: Side S of the images; smaller ones are enlarged. None takes them as they are.
    """

    def __init__(
        self,
        network: Any,
        recipe: FineTuneRecipe,
        total_steps: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        size: int | None,
    ) -> None:
        super().__init__(network, recipe.lr, total_steps, mean, std)
        self.seed, self.size = recipe.seed, size

    def on_train_epoch_start(self) -> None:
        """Draw the same views, and drop the same units, however often the training was cut before."""
        torch.manual_seed(_mixed(self.seed, self.current_epoch))
        self.rng = torch.Generator().manual_seed(_mixed(self.seed, self.current_epoch))

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] -> logits (B, K)."""
        return self.model(self.normalize(enlarge(images, self.size)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of one batch."""
        images = training_view(batch[0].float() / 255, self.rng, crop=CROP)
        loss = F.cross_entropy(self(images), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Accuracy of one batch, in percent."""
        correct = (self(batch[0].float() / 255).argmax(dim=1) == batch[1]).float().mean()
        self.log("accuracy", 100 * correct, prog_bar=True, batch_size=len(batch[1]))


def _mixed(seed: int, epoch: int) -> int:
    return int(np.random.default_rng([seed, epoch]).integers(2**31))


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


class _Order(Sampler[int]):
    """Every epoch's own order; Lightning tells the epoch, also when a training goes on."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng([self.seed, self.epoch]).permutation(self.count).tolist())


class _KeepLast(Checkpoint):
    """The state after each epoch, in one file; Lightning runs checkpoints after all other callbacks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Replace the file in one step."""
        draft = self.path.with_suffix(".part")
        with writing(self.path):
            trainer.save_checkpoint(draft)
            draft.replace(self.path)


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
        WriteError: If the disk does not take the files.
    """
    if output.suffix != ".safetensors":
        raise ValueError(f"--output must end in .safetensors, got {output}")
    if output.exists():
        raise ValueError(f"{output} is there already: remove it, or choose another --output")
    started = time.perf_counter()
    L.seed_everything(recipe.seed, verbose=False)
    card, network = load_network(recipe.model, recipe.checkpoint, recipe.config)
    images = _open(recipe, input_size(network, card))
    _prepare(network, int(images.labels.max()) + 1)
    folder = output.with_suffix(".training")
    last = folder / "last.ckpt"
    _begin(folder, {**asdict(recipe), "data": images.describe(), "digest": digest(images)})
    rows = np.random.default_rng(recipe.seed).permutation(len(images))
    held_out, rest = _Rows(images, rows[::HELD_OUT]), _Rows(images, np.delete(rows, np.s_[::HELD_OUT]))
    batch = min(recipe.batch_size, len(rest))
    order = _Order(len(rest), recipe.seed)
    loader = DataLoader(rest, batch, sampler=order, drop_last=True, num_workers=num_workers)
    validation = DataLoader(held_out, recipe.batch_size, num_workers=num_workers)
    size = getattr(getattr(network, "patch_embed", None), "img_size", None)
    module = FineTuning(
        network, recipe, len(loader) * recipe.epochs, tuple(card["mean"]), tuple(card["std"]), size and size[0]
    )  # fmt: skip
    quiet_lightning()
    loggers: list[Logger] = [_wandb_logger(recipe, output)] if wandb else []
    trainer = L.Trainer(
        max_epochs=recipe.epochs,
        gradient_clip_val=1.0,
        devices=1,
        callbacks=[EpochLines(console), _KeepLast(last)],
        logger=loggers,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    if last.exists():
        console.print(f"goes on from {last}", style="dim", highlight=False, soft_wrap=True)
    trainer.fit(module, loader, validation, ckpt_path=last if last.exists() else None)
    if trainer.interrupted:  # Lightning ends its loop as if nothing had happened
        raise KeyboardInterrupt
    accuracy = trainer.validate(module, validation, verbose=False)[0]["accuracy"]
    close_wandb(loggers, failed=False)
    kwargs = {**card["kwargs"], "num_classes": network.num_classes}
    described = {"architecture": card["architecture"], "kwargs": kwargs, "mean": card["mean"], "std": card["std"]}
    facts = [
        f"Fine-tuned by tta-bench source train: {json.dumps(asdict(recipe))}",
        f"Accuracy on the {len(held_out)} held-out images: {accuracy:.2f} %",
        f"torch {torch.__version__}, {time.perf_counter() - started:.0f} seconds since the last start",
    ]
    with writing(output):
        state = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
        text = "".join(f"# {line}\n" for line in facts) + OmegaConf.to_yaml(OmegaConf.create(described))
        output.with_suffix(".yaml").write_text(text, encoding="utf-8")
        save_file(state, output)
        shutil.rmtree(folder)
    console.print(
        f"accuracy {accuracy:.2f} % on held-out images; model=local model.checkpoint={output} "
        f"model.config={output.with_suffix('.yaml')}", highlight=False, soft_wrap=True,
    )  # fmt: skip


def _open(recipe: FineTuneRecipe, size: int | None) -> CleanImages:
    path = Path(recipe.images).expanduser()
    if recipe.image_size is not None or not path.is_dir() or is_cifar_binary(path):
        size = recipe.image_size
    images = open_images(path, recipe.labels, split=recipe.split, image_size=size, classes=recipe.classes)
    if len(images) < HELD_OUT:
        raise ValueError(f"{path} holds {len(images)} images: {HELD_OUT} are the least")
    return images


def _prepare(network: Any, num_classes: int) -> None:
    """Make the network trainable, with a new head if it has one of other classes."""
    if not hasattr(network, "reset_classifier"):
        raise ValueError(f"only timm models can be fine-tuned, and {type(network).__name__} is none")
    if network.num_classes != num_classes:
        network.reset_classifier(num_classes)
    network.train()


def _begin(folder: Path, facts: dict[str, Any]) -> None:
    """Make the folder of a training, or make sure that it is of this one."""
    file = folder / "recipe.json"
    if not file.exists():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(file, facts)
        return
    there = json.loads(file.read_text(encoding="utf-8"))
    for key, value in facts.items():
        if there.get(key) != value:
            raise ValueError(
                f"{folder} is of a training whose {key} was {there.get(key)!r} and is {value!r} now: remove it, or "
                "choose another --output"
            )


def _wandb_logger(recipe: FineTuneRecipe, output: Path) -> WandbLogger:
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbLogger(
        project="tta_bench", name=output.stem, job_type="source train", config=asdict(recipe),
        save_dir=output.parent, offline=wandb_mode() != "online",
    )  # fmt: skip
