"""Training of the source model of scenes_c from scratch: a plain ViT, on clean images that are each seen only once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import timm
import torch
from rich.console import Console
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

from tta_bench.datasets.procedural.scenes import CLASSES, label, render
from tta_bench.training.classifier import ClassifierTraining, finish_embedded
from tta_bench.training.core import Training, check_positive

ARCHITECTURE = "vit_tiny_patch16_224"  # timm's; the arguments make it 8 blocks of width 128 on 64 tokens
KWARGS = {
    "img_size": 64, "patch_size": 8, "embed_dim": 128, "depth": 8, "num_heads": 4, "num_classes": len(CLASSES),
}  # fmt: skip
BATCH_SIZE = 64
NUM_VALIDATION = NUM_TEST = 2000
ADAMW_LR = 2e-3
WARM_UP, COOL_DOWN = 0.03, 0.35  # fractions of the training in which the learning rate rises and falls linearly


class _Scenes(Dataset[tuple[Tensor, int]]):
    """Images of a split, rendered on demand: (3, 64, 64) uint8, and their labels."""

    def __init__(self, split: str, num_images: int) -> None:
        self.split, self.num_images = split, num_images

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(render(self.split, index)).permute(2, 0, 1).contiguous(), label(index)


class _NextImages(Sampler[int]):
    """New images for every epoch. They need no shuffling, since every twenty in a row contain each class once."""

    def __init__(self, per_epoch: int) -> None:
        self.per_epoch, self.epoch = per_epoch, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.per_epoch

    def __iter__(self) -> Any:
        return iter(range(self.epoch * self.per_epoch, (self.epoch + 1) * self.per_epoch))


class ScenesTraining(ClassifierTraining):
    """Muon for the matrices of the blocks and AdamW for the rest, in bfloat16.

    On a CPU, Muon learns shapes from a linear patch embedding in minutes where AdamW alone needs hours (Jordan et al.
    2024, "Muon: An optimizer for hidden layers in neural networks"). Arguments as for ``ClassifierTraining``; ``lr`` is
    Muon's.
    """

    def __init__(self, network: nn.Module, *settings: Any) -> None:
        super().__init__(network, *settings)
        self.automatic_optimization = False  # two optimizers share one backward pass

    def configure_optimizers(self) -> Any:
        """Both optimizers, each with the trapezoidal schedule."""
        hidden = [p for p in self.model.get_submodule("blocks").parameters() if p.ndim == 2]
        ours = {id(p) for p in hidden}
        rest = [p for p in self.model.parameters() if id(p) not in ours]
        optimizers = [
            torch.optim.Muon(hidden, lr=self.lr, weight_decay=0.05),
            torch.optim.AdamW(rest, lr=ADAMW_LR, weight_decay=0.01, betas=(0.9, 0.98)),
        ]
        return optimizers, [torch.optim.lr_scheduler.LambdaLR(o, self._share_of_peak) for o in optimizers]

    def _share_of_peak(self, step: int) -> float:
        done = (step + 1) / self.total_steps
        return min(1.0, done / WARM_UP, max(0.0, 1 - done) / COOL_DOWN)

    def training_view(self, images: Tensor) -> Tensor:
        """Contrast of half of the images and brightness of three in ten drawn anew, as RandAugment draws them."""

        def factor(share: float, low: float, high: float) -> Tensor:
            chance, drawn = torch.rand(2, len(images), 1, 1, 1, generator=self.rng)
            return torch.where(chance < share, low + (high - low) * drawn, 1.0)

        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        images = mean + factor(0.5, 0.1, 1.9) * (images - mean)
        return (images * factor(0.3, 0.5, 1.5)).clamp(0, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """One step of both optimizers on the cross-entropy of a batch."""
        optimizers, schedules = self.optimizers(), self.lr_schedulers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(self(self.training_view(batch[0].float() / 255)), batch[1])
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        self.log("loss", loss, prog_bar=True)
        return loss


def train_scenes_vit(
    output: Path,
    *,
    console: Console,
    seed: int = 0,
    epochs: int = 28,
    num_images: int = 16_000,
    lr: float = 0.02,
    num_workers: int = 1,
) -> None:
    """Train ``scenes_vit`` and write its weights (.safetensors, half precision) and a .yaml with the facts.

    The renderer draws position, scale, turn, stretch, colours, light and clutter of each image anew, which is what
    crops and the like do for photographs, and no image is shown twice.

    Args:
        output: File of the weights.
        console: Where to print.
        seed: Seed of the initial weights.
        epochs: Parts of the training; the state is saved after each.
        num_images: New images per epoch.
        lr: Peak learning rate of Muon.
        num_workers: Number of processes that render images, which does not change the weights.

    Raises:
        ValueError: As for ``Training``, or if a number is not positive.
        KeyboardInterrupt: If the training was interrupted; the same call resumes it.
    """
    check_positive(epochs=epochs, num_images=num_images, lr=lr)
    recipe = {"model": "scenes_vit", "seed": seed, "epochs": epochs, "num_images": num_images, "lr": lr}
    training = Training(output, recipe, console)
    L.seed_everything(seed, verbose=False)
    network = timm.create_model(ARCHITECTURE, **KWARGS)
    _start(network)
    batch = min(BATCH_SIZE, num_images)
    loader = DataLoader(
        _Scenes("train", num_images * epochs), batch, sampler=_NextImages(num_images), drop_last=True,
        num_workers=num_workers, persistent_workers=num_workers > 0,
    )  # fmt: skip
    module = ScenesTraining(network, len(CLASSES), lr, num_images // batch * epochs, seed)
    validation = DataLoader(_Scenes("validation", NUM_VALIDATION), 250)
    training.fit(module, loader, validation, epochs=epochs, metric="accuracy", precision="bf16-mixed")
    test = DataLoader(_Scenes("test", NUM_TEST), 250)
    finish_embedded(training, module, test, recipe, {"architecture": ARCHITECTURE, "kwargs": KWARGS})


@torch.no_grad()
def _start(network: VisionTransformer) -> None:
    """Initialise the network close to trained ViTs, which shortens the training.

    Positions are two-dimensional sines and cosines (MoCo v3, Chen et al. 2021). The products of queries and keys, and
    of values and projection, are close to multiples of the identity (Trockman and Kolter 2023, "Mimetic initialization
    of self-attention layers", Sec. 4).
    """
    rows, columns = network.patch_embed.grid_size
    width = network.embed_dim
    frequencies = 1 / 10000 ** (torch.arange(width // 4) / (width // 4))
    row = torch.arange(rows)[:, None, None] * frequencies.expand(rows, columns, -1)
    column = torch.arange(columns)[None, :, None] * frequencies.expand(rows, columns, -1)
    positions = torch.cat([f(at) for at in (row, column) for f in (torch.sin, torch.cos)], dim=-1)
    network.pos_embed[0, -rows * columns :] = 0.3 * positions.flatten(0, 1)
    for block in network.blocks:
        attention = block.attn
        attention.fused_attn = False  # on CPUs the explicit product is faster in bfloat16
        heads, size = attention.num_heads, attention.head_dim
        for head in range(heads):
            near = 0.7 * torch.randn(width, width) / math.sqrt(width) + 0.7 * torch.eye(width)
            left, values, right = torch.linalg.svd(near)
            root = values[:size].sqrt()
            mine = slice(head * size, (head + 1) * size)
            attention.qkv.weight[:width][mine] = (left[:, :size] * root).T
            attention.qkv.weight[width : 2 * width][mine] = root[:, None] * right[:size]
        near = 0.4 * torch.randn(width, width) / math.sqrt(width) - 0.4 * torch.eye(width)
        left, values, right = torch.linalg.svd(near)
        attention.proj.weight.copy_(left * values.sqrt())
        attention.qkv.weight[2 * width :] = values.sqrt()[:, None] * right
