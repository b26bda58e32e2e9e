"""The DataModule that loads the images of a schedule."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tta_bench.datasets.base import CleanImages, DomainDataset, SharingDataset, arrival_order, has_label_maps
from tta_bench.datasets.segmentation.label_map_domains import check_setting
from tta_bench.streams import Schedule, make_stream
from tta_bench.types import SourceNeed, StreamBatch

MOST_WORKERS = 8
SOURCE_BATCH = 64
SEGMENTED_SOURCE_BATCH = 4  # driving scenes have a dozen times as many pixels as images for classification


class _StreamDataset(Dataset[StreamBatch]):
    """Dataset with one item per step of the schedule."""

    def __init__(self, domains: DomainDataset, schedule: Schedule) -> None:
        self.domains, self.schedule = domains, schedule

    def __len__(self) -> int:
        return len(self.schedule)

    def __getitem__(self, t: int) -> StreamBatch:
        step = self.schedule[t]
        names = [self.schedule.domains[d] for d in step.domain_ids]
        rows = [(name, int(i)) for name, i in zip(names, step.indices, strict=True)]
        domain_ids = torch.from_numpy(step.domain_ids.astype(np.int64))
        images = [self.domains.load(*row) for row in rows]
        if has_label_maps(self.domains):
            maps = [self.domains.label_map(*row) for row in rows]
            remedy = "set setting.batch_size=1"
            return StreamBatch(_to_tensor(images, remedy), _stacked(maps, remedy), domain_ids, t)
        labels = [self.domains.labels(name)[i] for name, i in rows]
        return StreamBatch(_to_tensor(images), torch.tensor(labels), domain_ids, t)


class StreamDataModule(L.LightningDataModule):
    """Loads the images of ``domains`` in the order of ``schedule``; each batch of the loader is one step.

    Images are uint8 and have their size in the data set. The method converts them to the input of its network, so one
    DataModule works with every network, with a Trainer or in a plain loop.

    Args:
        domains: The data set.
        schedule: Which images arrive when; domains are looked up by name.
        num_workers: Number of worker processes, which never changes the order. None uses up to ``MOST_WORKERS``, at
            most one per processor, if the network runs on a GPU, and 0 if it runs on the processors.
        seed: Seed of the order of the source images.

    Attributes:
        start: The step at which the loader starts; steps keep their numbers.

    Example:
        >>> import tta_bench as tta
        >>> data = tta.data.ShapesC("csc", domains=["fog", "snow"], num_images=8, batch_size=4)
        >>> method = tta.methods.Tent(tta.load_model("shapes_vit"))
        >>> for batch in data.test_dataloader():
        ...     scores = method(batch.images)
        >>> scores.shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        domains: DomainDataset,
        schedule: Schedule,
        *,
        num_workers: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.domains, self.schedule, self.num_workers, self.seed = domains, schedule, num_workers, seed
        self.start = 0

    def test_dataloader(self) -> DataLoader[StreamBatch]:
        """Loader of the stream, in order."""
        dataset, steps = _StreamDataset(self.domains, self.schedule), range(self.start, len(self.schedule))
        cuda = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        workers = self.num_workers
        if workers is None:
            workers = min(MOST_WORKERS, processors() // self.trainer.world_size) if cuda else 0
        if workers and isinstance(self.domains, SharingDataset):  # otherwise every worker would make it again
            self.domains.make_shared()
        return DataLoader(dataset, batch_size=None, sampler=steps, num_workers=workers, pin_memory=cuda)

    def source_dataloader(self, need: SourceNeed, batch_size: int | None = None) -> SourceBatches:
        """Loader of source images (B, C, H, W) uint8 in random order, for ``fit_source`` of a method.

        Args:
            need: Whether labels (B,), or label maps (B, H, W), are loaded as well.
            batch_size: Images per batch; None uses 64, or ``SEGMENTED_SOURCE_BATCH`` for images with label maps.
        """
        labeled = need is SourceNeed.LABELED
        batch_size = batch_size or (SEGMENTED_SOURCE_BATCH if has_label_maps(self.domains) else SOURCE_BATCH)
        return SourceBatches(self.domains.source_images(), labeled, batch_size, self.seed)


def processors() -> int:
    """Number of processors that this process may use; macOS does not limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SourceBatches:
    """Batches of source images, in a new order for every pass.

    Args:
        clean: The images.
        labeled: Whether batches include labels.
        batch_size: Images per batch; the last may be shorter.
        seed: Seed of the orders.
    """

    def __init__(self, clean: CleanImages, labeled: bool, batch_size: int, seed: int) -> None:
        self.clean, self.labeled, self.batch_size = clean, labeled, batch_size
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return -(-len(self.clean) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = self.rng.permutation(len(self.clean))
        for rows in np.split(order, range(self.batch_size, len(order), self.batch_size)):
            images = _to_tensor([self.clean[int(i)] for i in rows])
            yield (images, self._labels(rows)) if self.labeled else images

    def _labels(self, rows: np.ndarray) -> Tensor:
        if hasattr(self.clean, "label_map"):
            return _stacked([self.clean.label_map(int(i)) for i in rows], "use source images of one size").long()
        return torch.from_numpy(self.clean.labels[rows])


def _to_tensor(images: list[np.ndarray], remedy: str = "set dataset.image_size") -> Tensor:
    """Stack (H, W, C) uint8 arrays of one size to (B, C, H, W) uint8.

    Raises:
        ValueError: If the sizes differ; the message ends with the remedy.
    """
    return _stacked([image.transpose(2, 0, 1) for image in images], remedy)


def _stacked(arrays: list[np.ndarray], remedy: str) -> Tensor:
    sizes = {array.shape[-2:] for array in arrays}
    if len(sizes) > 1:
        a, b = sorted(sizes)[:2]
        raise ValueError(f"images of {a[0]}x{a[1]} and {b[0]}x{b[1]} pixels in one stream: {remedy}")
    return torch.from_numpy(np.ascontiguousarray(np.stack(arrays)))


def schedule_for(
    domains: DomainDataset,
    setting: str,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    **params: Any,
) -> Schedule:
    """Create the stream of a setting over all domains of a data set.

    Args:
        domains: The data set.
        setting: Kind of stream, e.g. ``cdc``.
        batch_size: Samples per batch; None uses the setting's default.
        seed: Seed of the stream.
        params: Further parameters of the setting, and ``rounds`` and ``order``.

    Raises:
        ValueError: If the setting or one of its parameters is wrong, or the data set does not support the setting.
    """
    check_setting(domains, setting)
    labels = {name: domains.labels(name) for name in domains.domains}
    return make_stream(
        setting, labels=labels, arrivals=arrival_order(domains), batch_size=batch_size, seed=seed, **params
    )
