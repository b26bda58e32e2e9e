"""Clean CIFAR-10 and CIFAR-100 in their published binary version, which can be read without running code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_PIXELS = 3 * 32 * 32
_TRAIN, _TEST = ("data_batch_*.bin", "train.bin"), ("test_batch.bin", "test.bin")
_FILES = {"train": _TRAIN, "source": _TRAIN, "test": _TEST}


def is_cifar_binary(folder: Path) -> bool:
    """Whether a folder is an unpacked published archive."""
    return any(any(folder.glob(pattern)) for pattern in _TRAIN + _TEST)


class CifarBinary:
    """Images of ``cifar-10-batches-bin`` or ``cifar-100-binary``.

    A record is a label byte (two for CIFAR-100: the coarse class and the fine class, which is used) and
    3 x 32 x 32 bytes of pixels.

    Args:
        folder: The unpacked published archive.
        split: ``test``; or ``train`` or ``source`` for the training images.

    Raises:
        ValueError: If the split is unknown, or its files are missing or truncated.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; "binary version" of its page.
    """

    def __init__(self, folder: Path, split: str) -> None:
        if split not in _FILES:
            raise ValueError(f"{folder} has training images (train or source) and test images, not {split!r}")
        files = sorted(file for pattern in _FILES[split] for file in folder.glob(pattern))
        if not files:
            raise ValueError(f"{folder} holds no {' or '.join(_FILES[split])}")
        header = 2 if files[0].name in ("train.bin", "test.bin") else 1
        for file in files:
            if file.stat().st_size % (header + _PIXELS) or not file.stat().st_size:
                raise ValueError(f"{file} is truncated: its size is not a multiple of a CIFAR record")
        records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, header + _PIXELS) for file in files])
        self.labels = records[:, header - 1].astype(np.int64)
        self._pixels = records[:, header:]
        self.folder, self.split = folder, split
        self.num_classes = 10 if header == 1 else 100

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.ascontiguousarray(self._pixels[index].reshape(3, 32, 32).transpose(1, 2, 0))

    def describe(self) -> str:
        """Folder name, split and number of images."""
        return f"{self.folder.name} ({self.split}, {len(self)} images)"
