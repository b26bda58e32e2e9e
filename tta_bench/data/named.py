"""A DataModule per data set, for use in a plain Lightning program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.base import DomainDataset
from tta_bench.datasets.classification.cifar_c import cifar10_c, cifar100_c
from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.imagenet_c import imagenet_c
from tta_bench.datasets.classification.packed import packed
from tta_bench.datasets.classification.shapes_c import shapes_c


class NamedStream(StreamDataModule):
    """A data set as a stream; a subclass says which.

    Args:
        setting: Kind of stream, e.g. ``cdc``.
        batch_size: Samples per batch.
        seed: Seed of the stream and of the order of the source images.
        num_workers: Loader processes; None as for ``StreamDataModule``.
        setting_params: Further parameters of the setting, e.g. ``{"delta": 0.1}``.
        dataset: Keyword arguments of ``make``, e.g. ``root="ImageNet-C"``.

    Attributes:
        make: The function that opens the data set; its arguments are described there.
    """

    make: ClassVar[Callable[..., DomainDataset]]

    def __init__(
        self,
        setting: str = "cdc",
        *,
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int | None = None,
        setting_params: dict[str, Any] | None = None,
        **dataset: Any,
    ) -> None:
        domains = type(self).make(**dataset)
        schedule = schedule_for(domains, setting, batch_size=batch_size, seed=seed, **setting_params or {})
        super().__init__(domains, schedule, num_workers=num_workers, seed=seed)


class ShapesC(NamedStream):
    """The embedded procedural shapes; see ``tta_bench.datasets.classification.shapes_c.shapes_c``."""

    make = staticmethod(shapes_c)


class CorruptedImages(NamedStream):
    """Your own clean images, corrupted on the fly; see ``tta_bench.datasets.classification.corrupted.corrupted``."""

    make = staticmethod(corrupted)


class Cifar10C(NamedStream):
    """CIFAR10-C as published; see ``tta_bench.datasets.classification.cifar_c.cifar10_c``."""

    make = staticmethod(cifar10_c)


class Cifar100C(NamedStream):
    """CIFAR100-C as published; see ``tta_bench.datasets.classification.cifar_c.cifar100_c``."""

    make = staticmethod(cifar100_c)


class ImageNetC(NamedStream):
    """ImageNet-C as published; see ``tta_bench.datasets.classification.imagenet_c.imagenet_c``."""

    make = staticmethod(imagenet_c)


class ImageFolder(NamedStream):
    """Any folder of domains of class folders; see ``tta_bench.datasets.classification.image_folder.image_folder``."""

    make = staticmethod(image_folder)


class Packed(NamedStream):
    """What ``tta-bench data pack`` wrote; see ``tta_bench.datasets.classification.packed.packed``."""

    make = staticmethod(packed)
