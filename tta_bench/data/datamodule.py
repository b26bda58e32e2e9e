"""From a schedule to images: the DataModule of every stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tta_bench.domains.clean import CleanImages
from tta_bench.domains.corrupted import DomainSource
from tta_bench.streams import Schedule, make_stream
from tta_bench.types import SourceNeed, StreamBatch


class _StreamDataset(Dataset[StreamBatch]):
    """One item is one step of the schedule."""

    def __init__(self, domains: DomainSource, schedule: Schedule) -> None:
        self.domains, self.schedule = domains, schedule

    def __len__(self) -> int:
        return len(self.schedule)

    def __getitem__(self, t: int) -> StreamBatch:
        step = self.schedule[t]
        names = [self.schedule.domains[d] for d in step.domain_ids]
        images = [self.domains.load(name, int(i)) for name, i in zip(names, step.indices, strict=True)]
        labels = [self.domains.labels(name)[i] for name, i in zip(names, step.indices, strict=True)]
        domain_ids = torch.from_numpy(step.domain_ids.astype(np.int64))
        return StreamBatch(_to_tensor(images), torch.tensor(labels), domain_ids, t)


class StreamDataModule(L.LightningDataModule):
    """Shows the images of ``domains`` in the order of ``schedule``; one batch of the loader is one step.

    Images travel as uint8; on the device they become floats in [0, 1] and are brought to the size that the model takes,
    before a method sees or augments them.

    Args:
        domains: Where the images come from.
        schedule: What arrives when; domains are looked up by name.
        num_workers: Loader processes; their number never changes the order.
        seed: Seed of the order of the source images.
        image_size: Side of the square images that the model takes; smaller ones are enlarged. None leaves all as
            they are.
        resize: Length that the shorter side is brought to before, and side of the square that is cut out of the
            centre; None does neither.
        source_resize: The same for source images.

    Attributes:
        start: The step at which the loader starts; steps keep their numbers.
    """

    def __init__(
        self,
        domains: DomainSource,
        schedule: Schedule,
        *,
        num_workers: int = 0,
        seed: int = 0,
        image_size: int | None = None,
        resize: tuple[int, int] | None = None,
        source_resize: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.domains, self.schedule, self.num_workers, self.seed = domains, schedule, num_workers, seed
        self.image_size, self.resize, self.source_resize = image_size, resize, source_resize
        self.start = 0

    def test_dataloader(self) -> DataLoader[StreamBatch]:
        """The stream, in order."""
        dataset, steps = _StreamDataset(self.domains, self.schedule), range(self.start, len(self.schedule))
        cuda = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        return DataLoader(dataset, batch_size=None, sampler=steps, num_workers=self.num_workers, pin_memory=cuda)

    def source_dataloader(self, need: SourceNeed, batch_size: int = 64) -> SourceBatches:
        """Source images (B, C, H, W) in [0, 1] in random order, with labels (B,) if ``need`` asks for them."""
        labeled = need is SourceNeed.LABELED
        images = self.domains.source_images()
        return SourceBatches(images, labeled, batch_size, self.seed, self.image_size, self.source_resize)

    def on_after_batch_transfer(self, batch: StreamBatch, dataloader_idx: int) -> StreamBatch:
        """Bytes to floats of the model's size, on the device."""
        return batch._replace(images=sized(_to_unit(batch.images), self.image_size, self.resize))


class SourceBatches:
    """Batches of source images; every pass over them has an order of its own.

    Args:
        clean: The images.
        labeled: Whether labels come with them.
        batch_size: Images per batch; the last may be shorter.
        seed: Seed of the orders.
        image_size: As for ``StreamDataModule``.
        resize: As for ``StreamDataModule``.
    """

    def __init__(
        self,
        clean: CleanImages,
        labeled: bool,
        batch_size: int,
        seed: int,
        image_size: int | None = None,
        resize: tuple[int, int] | None = None,
    ) -> None:
        self.clean, self.labeled, self.batch_size = clean, labeled, batch_size
        self.image_size, self.resize = image_size, resize
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return -(-len(self.clean) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = self.rng.permutation(len(self.clean))
        for rows in np.split(order, range(self.batch_size, len(order), self.batch_size)):
            images = _to_unit(_to_tensor([self.clean[int(i)] for i in rows]))
            images = sized(images, self.image_size, self.resize)
            yield (images, torch.from_numpy(self.clean.labels[rows])) if self.labeled else images


def _to_tensor(images: list[np.ndarray]) -> Tensor:
    """(H, W, C) uint8 arrays of one size -> (B, C, H, W) uint8.

    Raises:
        ValueError: If the sizes differ.
    """
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        a, b = sorted(sizes)[:2]
        raise ValueError(f"images of {a[0]}x{a[1]} and {b[0]}x{b[1]} pixels in one stream: set dataset.image_size")
    return torch.from_numpy(np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)))


def _to_unit(images: Tensor) -> Tensor:
    return images.float().div_(255)


def sized(images: Tensor, size: int | None, resize: tuple[int, int] | None) -> Tensor:
    """Images (B, C, H, W) as the model takes them: resized and cut if asked for, then enlarged if still too small."""
    return enlarge(images if resize is None else resize_and_crop(images, *resize), size)


def resize_and_crop(images: Tensor, shorter: int, side: int) -> Tensor:
    """Bring the shorter side to a length and cut out the centre: (B, C, H, W) -> (B, C, side, side).

    Bilinear, with antialiasing where images shrink, and with torchvision's rounding of sizes and offsets.
    """
    lengths = images.shape[-2:]
    height, width = (int(shorter * length / min(lengths)) for length in lengths)
    images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)
    top, left = round((height - side) / 2), round((width - side) / 2)
    return images[..., top : top + side, left : left + side]


def enlarge(images: Tensor, size: int | None) -> Tensor:
    """Bring smaller square images (B, C, H, W) to (B, C, size, size): bilinear, corners not aligned.

    Raises:
        ValueError: If they are larger, or not square.

    Source: what the released ViT code for CIFAR-C does from 32 to 384 pixels (Yangsenqiao/vida, ``cifar/``).
    """
    height, width = images.shape[-2:]
    if size is None or height == width == size:
        return images
    if height != width or height > size:
        raise ValueError(
            f"images of {height}x{width} pixels do not fit a model of {size}x{size}: set dataset.image_size={size}, "
            "or choose another model"
        )
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False)


def schedule_for(
    domains: DomainSource,
    setting: str,
    *,
    batch_size: int = 64,
    seed: int = 0,
    **params: Any,
) -> Schedule:
    """Make the stream of a setting over all domains of a data set.

    Args:
        domains: The data set.
        setting: Kind of stream, e.g. ``cdc``.
        batch_size: Samples per batch.
        seed: Seed of the stream.
        params: Further parameters of that kind, and ``rounds`` and ``order``.
    """
    labels = {name: domains.labels(name) for name in domains.domains}
    return make_stream(setting, labels=labels, batch_size=batch_size, seed=seed, **params)
