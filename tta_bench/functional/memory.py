"""Memories of test images, which decide which images of a stream a method keeps to learn from.

The contents are buffers, so a memory inside a method is saved and reset with it. Replacement is decided image by image
on the CPU, as published; the images themselves are moved once per call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


def cut_at_updates(waiting: int, batch_size: int, every: int) -> Iterator[tuple[slice, bool]]:
    """Split a batch after each ``every``-th image of the stream.

    Args:
        waiting: Number of images since the last split, less than ``every``.
        batch_size: Number of images in the batch.
        every: Number of images between splits.

    Yields:
        Rows of the batch, and whether an update is due after them.

    Example:
        >>> list(cut_at_updates(waiting=6, batch_size=5, every=8))
        [(slice(0, 2, None), True), (slice(2, 5, None), False)]
    """
    start = 0
    while start < batch_size:
        stop = min(start + every - waiting, batch_size)
        due = stop - start + waiting == every
        yield slice(start, stop), due
        start, waiting = stop, 0


@dataclass(eq=False)
class _Item:
    row: int  # index into the stored images followed by the arriving ones
    label: int
    entropy: float = 0.0
    age: float = 0.0  # number of images that have arrived since, including this one


class CSTU(nn.Module):
    """Category-balanced sampling with timeliness and uncertainty: few, recent and confident images of every class.

    A class has a quota of N / K images. An image of a class below its quota is stored while there is room, and then
    competes with the images of the largest classes; an image of a full class competes with its own class. The worst
    competitor is dropped if it is worse than the new image; otherwise the new image is. Worse means a larger
    w_age * sigmoid(age / N) + w_entropy * entropy / ln K.

    Args:
        capacity: N, the maximum number of images.
        num_classes: K.
        age_weight: w_age.
        entropy_weight: w_entropy.

    States:
        images (M, C, H, W), labels (M,), entropies (M,) in nats and ages (M,) in images, M <= N: sorted by label and,
        within a label, by arrival. Empty at first.

    Source:
        RoTTA (Yuan et al., CVPR 2023) and repository BIT-DA/RoTTA.
    """

    images: Tensor
    labels: Tensor
    entropies: Tensor
    ages: Tensor

    def __init__(
        self, capacity: int, num_classes: int, *, age_weight: float = 1.0, entropy_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.capacity, self.num_classes = capacity, num_classes
        self.age_weight, self.entropy_weight = age_weight, entropy_weight
        for name in ("images", "entropies", "ages"):
            self.register_buffer(name, torch.empty(0))
        self.register_buffer("labels", torch.empty(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.labels)

    @torch.no_grad()
    def add(self, images: Tensor, labels: Tensor, entropies: Tensor) -> None:
        """Offer images (B, C, H, W) in order of arrival, with predicted labels (B,) and entropies (B,) in nats."""
        stored = zip(self.labels.tolist(), self.entropies.tolist(), self.ages.tolist(), strict=True)
        items = [_Item(row, *values) for row, values in enumerate(stored)]
        for row, (label, entropy) in enumerate(zip(labels.tolist(), entropies.tolist(), strict=True), len(items)):
            new = _Item(row, label, entropy)
            if self._make_room(items, new):
                items.append(new)
            for item in items:
                item.age += 1
        items.sort(key=lambda item: item.label)
        self.images = _select(self.images, images, [item.row for item in items])
        self.labels = labels.new_tensor([item.label for item in items])
        self.entropies = entropies.new_tensor([item.entropy for item in items])
        self.ages = entropies.new_tensor([item.age for item in items])

    def _make_room(self, items: list[_Item], new: _Item) -> bool:
        """Remove the item that the new item replaces, if any; return whether the new item is stored."""
        sizes = Counter(item.label for item in items)
        if sizes[new.label] >= self.capacity / self.num_classes:
            rivals = [item for item in items if item.label == new.label]
        elif len(items) < self.capacity:
            return True
        else:
            rivals = [item for item in items if sizes[item.label] == max(sizes.values())]
        # Of equal items the last is dropped: the largest label, then the latest arrival.
        worst = max(reversed(rivals), key=lambda item: (self._score(item), item.label))
        if self._score(worst) <= self._score(new):
            return False
        items.remove(worst)
        return True

    def _score(self, item: _Item) -> float:
        timeliness = self.age_weight / (1 + math.exp(-item.age / self.capacity))
        return timeliness + self.entropy_weight * item.entropy / math.log(self.num_classes)


class PBRS(nn.Module):
    """Prediction-balanced reservoir sampling: classes of equal size, each a uniform sample of its past images.

    In a full memory, an image of a smaller class replaces a random image of a random largest class. An image of a
    largest class replaces a random image of its own class with probability m / n, where m of the n images seen of the
    class are stored.

    Args:
        capacity: N, the maximum number of images.
        num_classes: K.

    States:
        images (M, C, H, W) and labels (M,), M <= N, in order of arrival, and seen (K,), the number of images of each
        class that have arrived. Empty at first.

    Source:
        NOTE (Gong et al., NeurIPS 2022), Alg. 1 and repository TaesikGong/NOTE.
    """

    images: Tensor
    labels: Tensor
    seen: Tensor

    def __init__(self, capacity: int, num_classes: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.register_buffer("images", torch.empty(0))
        self.register_buffer("labels", torch.empty(0, dtype=torch.long))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.labels)

    @torch.no_grad()
    def add(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> None:
        """Offer images (B, C, H, W) in order of arrival, with predicted labels (B,); ``rng`` is on the CPU."""
        items = [_Item(row, label) for row, label in enumerate(self.labels.tolist())]
        seen = self.seen.tolist()
        for row, label in enumerate(labels.tolist(), len(items)):
            new = _Item(row, label)
            seen[label] += 1
            if len(items) < self.capacity or self._make_room(items, new, seen[label], rng):
                items.append(new)
        self.images = _select(self.images, images, [item.row for item in items])
        self.labels = labels.new_tensor([item.label for item in items])
        self.seen = labels.new_tensor(seen)

    def _make_room(self, items: list[_Item], new: _Item, seen: int, rng: torch.Generator) -> bool:
        """Remove the item that the new item replaces, if any; return whether the new item is stored."""
        sizes = Counter(item.label for item in items)
        largest = sorted(label for label in sizes if sizes[label] == max(sizes.values()))
        if new.label not in largest:
            leaving = _choose(largest, rng)
        elif float(torch.rand((), generator=rng)) <= sizes[new.label] / seen:
            leaving = new.label
        else:
            return False
        items.remove(_choose([item for item in items if item.label == leaving], rng))
        return True


def _choose(options: list[T], rng: torch.Generator) -> T:
    return options[int(torch.randint(len(options), (), generator=rng))]


def _select(stored: Tensor, arriving: Tensor, rows: list[int]) -> Tensor:
    both = torch.cat([stored, arriving]) if len(stored) else arriving
    return both[torch.tensor(rows, device=both.device)]
