"""One DataModule per data set, for use in plain Lightning programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.base import DomainDataset
from tta_bench.datasets.classification.cifar_c import cifar10_c, cifar100_c
from tta_bench.datasets.classification.corrupted import corrupted
from tta_bench.datasets.classification.image_folder import image_folder
from tta_bench.datasets.classification.imagenet_c import imagenet_c
from tta_bench.datasets.classification.manifest import manifest
from tta_bench.datasets.classification.packed import packed
from tta_bench.datasets.classification.scenes_c import scenes_c
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.datasets.segmentation.driving import acdc, cityscapes
from tta_bench.datasets.segmentation.folder import segmentation_folder
from tta_bench.datasets.segmentation.streets_c import streets_c
from tta_bench.suggestions import did_you_mean


class NamedStream(StreamDataModule):
    """A data set as a stream; subclasses name the data set.

    Args:
        setting: Kind of stream, e.g. ``cdc``: a name in ``tta_bench.list_settings()``. None uses that of the
            data set, ``cdc`` unless its class says otherwise.
        batch_size: Samples per batch; None uses the setting's default, usually 64.
        seed: Seed of the stream and of the order of the source images.
        num_workers: Number of worker processes; None as in ``StreamDataModule``.
        setting_params: Further parameters of the setting, e.g. ``{"delta": 0.1}``.
        dataset: Keyword arguments of ``make``, e.g. ``root="ImageNet-C"``.

    Attributes:
        make: The function that opens the data set; its arguments are described there.

    Raises:
        ValueError: If the data set, the setting or one of their values is wrong.
    """

    make: ClassVar[Callable[..., DomainDataset]]
    usual_setting: ClassVar[str] = "cdc"
    usual_batch_size: ClassVar[int | None] = None  # overrides the setting's default

    def __init__(
        self,
        setting: str | None = None,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        num_workers: int | None = None,
        setting_params: dict[str, Any] | None = None,
        **dataset: Any,
    ) -> None:
        _check_keys(type(self), dataset)
        domains = type(self).make(**dataset)
        size = self.usual_batch_size if batch_size is None else batch_size
        schedule = schedule_for(
            domains, setting or self.usual_setting, batch_size=size, seed=seed, **setting_params or {}
        )
        super().__init__(domains, schedule, num_workers=num_workers, seed=seed)


def _check_keys(cls: type[NamedStream], dataset: dict[str, Any]) -> None:
    known = list(inspect.signature(cls.make).parameters)
    for key in dataset:
        if key not in known:
            raise ValueError(f"{cls.__name__} takes no {key!r}{did_you_mean(key, known, listed='its keys are')}")


class ShapesC(NamedStream):
    """The embedded procedural shapes; see ``tta_bench.datasets.classification.shapes_c.shapes_c``."""

    make = staticmethod(shapes_c)


class ScenesC(NamedStream):
    """The embedded procedural scenes; see ``tta_bench.datasets.classification.scenes_c.scenes_c``."""

    make = staticmethod(scenes_c)


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
    """Folders of domains of class folders; see ``tta_bench.datasets.classification.image_folder.image_folder``."""

    make = staticmethod(image_folder)


class Manifest(NamedStream):
    """Your own stream, in its own order; see ``tta_bench.datasets.classification.manifest.manifest``."""

    make = staticmethod(manifest)
    usual_setting = "as_given"


class Packed(NamedStream):
    """Output of ``tta-bench data pack``; see ``tta_bench.datasets.classification.packed.packed``."""

    make = staticmethod(packed)


class NamedSegmentation(NamedStream):
    """A data set with a class per pixel as a stream, by default of single images, as published."""

    usual_batch_size = 1


class StreetsC(NamedSegmentation):
    """The embedded street scenes; see ``tta_bench.datasets.segmentation.streets_c.streets_c``."""

    make = staticmethod(streets_c)


class ACDC(NamedSegmentation):
    """ACDC as published; see ``tta_bench.datasets.segmentation.driving.acdc``."""

    make = staticmethod(acdc)


class Cityscapes(NamedSegmentation):
    """Cityscapes, corrupted on the fly; see ``tta_bench.datasets.segmentation.driving.cityscapes``."""

    make = staticmethod(cityscapes)


class SegmentationFolder(NamedSegmentation):
    """Your own images and label maps; see ``tta_bench.datasets.segmentation.folder.segmentation_folder``."""

    make = staticmethod(segmentation_folder)
