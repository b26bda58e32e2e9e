"""Train the source model of shapes_c from scratch, on clean images only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import lightning.pytorch as L
import numpy as np
import timm
import torch
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

from tta_bench.datasets.procedural.shapes import label, render
from tta_bench.models.backbones.base import Normalize
from tta_bench.models.zoo.shapes_vit import shapes_vit
from tta_bench.quiet import quiet_lightning

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
BATCH_SIZE = 128


class SourceTraining(L.LightningModule):
    """Cross-entropy training of a classifier: AdamW with a one-cycle schedule.

    Args:
        model: Takes normalised images (B, 3, H, W) and gives logits (B, K).
        lr: Peak learning rate.
        total_steps: Optimizer steps of the whole training.
        mean: Normalisation mean per channel, for images in [0, 1].
        std: Normalisation standard deviation per channel.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        total_steps: int,
        mean: tuple[float, ...] = MEAN,
        std: tuple[float, ...] = STD,
    ) -> None:
        super().__init__()
        self.model, self.lr, self.total_steps = model, lr, total_steps
        self.normalize = Normalize(mean, std)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) uint8 -> logits (B, K)."""
        return self.model(self.normalize(images.float() / 255))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of one batch."""
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Accuracy of one batch, in percent."""
        correct = (self(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("accuracy", 100 * correct, prog_bar=True, batch_size=len(batch[1]))

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW, one cycle over all steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.05)
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, total_steps=self.total_steps, pct_start=0.1
        )  # fmt: skip
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Shuffled(Sampler[int]):
    """All images in a new order in every epoch, which goes on from torch's random numbers of this moment.

    Args:
        num_images: Number of images.
    """

    def __init__(self, num_images: int) -> None:
        self.num_images = num_images
        self.rng = torch.Generator()
        self.rng.set_state(torch.get_rng_state())

    def __len__(self) -> int:
        return self.num_images

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.num_images, generator=self.rng).tolist()


class EpochLines(L.Callback):
    """A line per epoch, which stays on the screen and in a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the accuracy."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            accuracy = trainer.callback_metrics["accuracy"].item()
            self.console.print(
                f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}: {accuracy:.1f} % on validation"
            )


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
        ValueError: If ``output`` does not end in .safetensors.
    """
    if output.suffix != ".safetensors":
        raise ValueError(f"--output must end in .safetensors, got {output}")
    quiet_lightning()
    started = time.perf_counter()
    train, validation = _rendered("train", num_images), _rendered("validation", 2000)
    L.seed_everything(seed, verbose=False)
    network = timm.create_model("shapes_vit")
    loader = DataLoader(train, BATCH_SIZE, sampler=Shuffled(len(train)), drop_last=True)
    module = SourceTraining(network, lr, total_steps=len(loader) * epochs)
    trainer = L.Trainer(
        max_epochs=epochs,
        gradient_clip_val=1.0,
        callbacks=[EpochLines(console)],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, DataLoader(validation, 500))
    state = {key: value.half().contiguous() for key, value in module.model.state_dict().items()}
    accuracy = _accuracy_of_saved(state, _rendered("test", 2000))
    output.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, output)
    facts = (
        f"# Trained by: tta-bench source train --output {output.name} --seed {seed} --epochs {epochs} "
        f"--num-images {num_images} --lr {lr}\n"
        f"# Clean accuracy of these weights on 2,000 test images: {accuracy:.2f} %\n"
        f"# torch {torch.__version__}, {torch.get_num_threads()} threads, {time.perf_counter() - started:.0f} seconds\n"
    )
    card = {"architecture": "shapes_vit", "kwargs": {}, "mean": list(MEAN), "std": list(STD)}
    output.with_suffix(".yaml").write_text(facts + OmegaConf.to_yaml(OmegaConf.create(card)))
    console.print(f"clean accuracy {accuracy:.2f} %, weights in {output}")


def _rendered(split: str, num_images: int) -> TensorDataset:
    with get_context("spawn").Pool() as pool:
        jobs = pool.imap(_render, ((split, i) for i in range(num_images)), chunksize=256)
        images = np.stack(list(track(jobs, f"rendering {split}", total=num_images)))
    labels = torch.tensor([label(i) for i in range(num_images)])
    return TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels)


def _render(job: tuple[str, int]) -> np.ndarray:
    return render(*job)


@torch.no_grad()
def _accuracy_of_saved(state: dict[str, Tensor], data: TensorDataset) -> float:
    """Accuracy in percent of the rounded weights, as a user will load them."""
    module = SourceTraining(shapes_vit(), 0.0, 1).eval()
    module.model.load_state_dict({key: value.float() for key, value in state.items()})
    images, labels = data.tensors
    predicted = torch.cat([module(part).argmax(dim=1) for part in images.split(500)])
    return 100 * (predicted == labels).float().mean().item()
