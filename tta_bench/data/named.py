"""A DataModule per data set, for use in a plain Lightning program."""

from __future__ import annotations

from typing import Any

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.domains.corrupted import corrupted, shapes_c


class ShapesC(StreamDataModule):
    """The embedded data set ``shapes_c`` as a stream.

    Args:
        setting: Kind of stream, e.g. ``cdc``.
        batch_size: Samples per batch.
        seed: Seed of the stream and of the order of the source images.
        num_workers: Loader processes.
        setting_params: Further parameters of the setting, e.g. ``{"delta": 0.1}``.
        dataset: Keyword arguments of ``tta_bench.domains.corrupted.shapes_c``.
    """

    def __init__(
        self,
        setting: str = "cdc",
        *,
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int = 0,
        setting_params: dict[str, Any] | None = None,
        **dataset: Any,
    ) -> None:
        domains = shapes_c(**dataset)
        schedule = schedule_for(domains, setting, batch_size=batch_size, seed=seed, **setting_params or {})
        super().__init__(domains, schedule, num_workers=num_workers, seed=seed)


class CorruptedImages(StreamDataModule):
    """Your own clean images, corrupted on the fly, as a stream.

    Args:
        images: A folder of class folders, a ``.npz`` file, or a ``.npy`` file.
        setting: Kind of stream, e.g. ``cdc``.
        batch_size: Samples per batch.
        seed: Seed of the stream and of the order of the source images.
        num_workers: Loader processes.
        setting_params: Further parameters of the setting, e.g. ``{"delta": 0.1}``.
        dataset: Further keyword arguments of ``tta_bench.domains.corrupted.corrupted``.
    """

    def __init__(
        self,
        images: str,
        setting: str = "cdc",
        *,
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int = 0,
        setting_params: dict[str, Any] | None = None,
        **dataset: Any,
    ) -> None:
        domains = corrupted(images=images, **dataset)
        schedule = schedule_for(domains, setting, batch_size=batch_size, seed=seed, **setting_params or {})
        super().__init__(domains, schedule, num_workers=num_workers, seed=seed)
