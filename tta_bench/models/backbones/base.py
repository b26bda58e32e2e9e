"""The adapted network as methods see it, and the one door at which its passes are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tta_bench.models.parallel import gather, share_of
from tta_bench.models.preprocess import Preprocess, enlarge, resize_and_crop, to_unit


class PassMeter:
    """Counts images that go forward and backward through a backbone. Copies of the backbone (teachers) share it.

    A backward pass counts the images whose features receive a non-zero gradient, so a method that selects
    samples is charged for the selected ones (the convention behind EATA's published counts).
    """

    def __init__(self) -> None:
        self.forward_samples = 0
        self._backward_samples = torch.zeros((), dtype=torch.long)  # on the device: no synchronisation per pass

    @property
    def backward_samples(self) -> int:
        """Images counted backward so far; reading it synchronises with the device."""
        return int(self._backward_samples)

    def observe(self, features: Tensor) -> None:
        """Count one forward pass that gave ``features`` (N, D), and its backward pass when it comes."""
        self.forward_samples += len(features)
        if features.requires_grad:
            features.register_hook(self._count_backward)

    def _count_backward(self, grad: Tensor) -> None:
        reached = (grad.detach().flatten(1) != 0).any(dim=1).sum()
        self._backward_samples = self._backward_samples.to(reached.device) + reached

    def __deepcopy__(self, memo: object) -> PassMeter:
        return self


class Embedded(NamedTuple):
    """Embedded images of one batch; opaque to methods, which only pass it to ``encode``."""

    tokens: Tensor  # (b, N, D), of this rank's share of the batch
    batch_size: int  # B, of the whole batch


class Normalize(nn.Module):
    """Subtract a mean and divide by a standard deviation per channel: the first operation of a backbone.

    Args:
        mean: One value per channel, for images in [0, 1].
        std: One value per channel.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        # Not persistent: the values belong to the preprocessing profile, not to the weights.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] -> the same shape, normalised.

        Raises:
            TypeError: If the images are no floats: bytes would give scores, but meaningless ones.
        """
        if not images.is_floating_point():
            raise TypeError("a network takes floats in [0, 1]: make them with backbone.prepare(images)")
        return (images - self.mean) / self.std


class Backbone(nn.Module):
    """A source model in three steps: ``embed`` images, ``encode`` to features, ``classify``.

    Methods call these three (or ``features`` and the whole, ``forward``) and nothing else of the network.
    ``encode`` is the door: every pass through it is counted in ``meter``, and it is where a batch is split over
    several devices. What ``embed`` returns stays constant while prompts are learned on a batch.

    A network that scores pixels (``segments``) gives maps (B, D, h, w) for features and logits (B, K, H, W). Its
    ``classify`` needs more than the last map, so what ``encode`` returns is opaque: it goes to ``classify`` (its
    ``detach()`` too), and ``features_of`` takes the features out. For all other networks it is the features.

    Attributes:
        feature_dim: Width D of a feature.
        prompt_dim: Width of a prompt token, None if the network takes no prompts.
        num_classes: Number of scores K.
        segments: Whether every pixel has scores of its own, (B, K, H, W).
        patch_size: Side of a patch in pixels, None if there are no patches.
        mask_size: Side of the patches that ``embed_masked`` can hide, in pixels, None if it cannot hide any.
        mask_dim: Width of what stands in the place of a hidden patch.
        image_size: Side of the images in pixels, None if the network takes any.
        preprocess: What is done to images: ``prepare`` resizes them, and the network's first operation normalises.
        source_preprocess: The same for the images that a method learns the source from; None if it is the same.
        weights_sha256: Hash of the source weights, filled in by ``load_model``.
        weights_origin: Where in their file they lay: key, prefix and what also fits; None if they were downloaded.
        kept_classes: Which of the weights' classes have scores, None if all have: see ``keep_classes``.
    """

    feature_dim: int
    num_classes: int
    segments: bool = False
    prompt_dim: int | None = None
    patch_size: int | None = None
    mask_size: int | None = None
    mask_dim: int = 0
    image_size: int | None = None
    weights_sha256: str = ""
    weights_origin: dict[str, Any] | None = None
    kept_classes: tuple[int, ...] | None = None

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.preprocess = Preprocess("own", tuple(mean), tuple(std))
        self.source_preprocess: Preprocess | None = None
        self.meter = PassMeter()

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.parameters()).dtype

    def prepare(self, images: Tensor) -> Tensor:
        """Images as they are stored -> images as the network takes them, and as a method augments them.

        Resized and cut if ``preprocess`` says so, then enlarged if they are still smaller than the network's input. The
        one place where that happens: ``method(images)`` and ``method.fit_source(loader)`` call it.

        Args:
            images: (B, C, H, W) uint8, or floats in [0, 1].

        Returns:
            (B, C, image_size, image_size) in [0, 1], or of their own size where the network takes any.

        Raises:
            ValueError: If floats are not in [0, 1], or the images are larger than the network's input, or not square,
                and ``preprocess`` does not resize.
        """
        images, resize = to_unit(images), self.preprocess.resize
        return enlarge(images if resize is None else resize_and_crop(images, *resize), self.image_size)

    @contextmanager
    def on_source(self) -> Iterator[None]:
        """Resize and normalise as source images are."""
        own, normalize, other = self.preprocess, self.normalize, self.source_preprocess
        if other is not None:
            self.preprocess, self.normalize = other, Normalize(other.mean, other.std).to(normalize.mean)
        try:
            yield
        finally:
            self.preprocess, self.normalize = own, normalize

    def _embed(self, images: Tensor) -> Tensor:
        raise NotImplementedError  # a subclass wraps its network's first layers here

    def _encode(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        raise NotImplementedError  # a subclass wraps its network's body here

    def classify(self, features: Tensor) -> Tensor:
        """Features (B, D) -> logits (B, K)."""
        raise NotImplementedError  # a subclass wraps its network's head here

    def embed(self, images: Tensor) -> Embedded:
        """Images (B, C, H, W) in [0, 1] -> what ``encode`` takes."""
        share = images[share_of(len(images))]
        return Embedded(self._embed(self.normalize(share)), len(images))

    def encode(self, embedded: Embedded, prompt: Tensor | None = None) -> Tensor:
        """Embedded images, optionally with prompt tokens (L, prompt_dim) -> features (B, D)."""
        features = gather(self._encode(embedded.tokens, prompt), embedded.batch_size)
        self.meter.observe(features)
        return features

    def embed_masked(self, images: Tensor, mask: Tensor, mask_token: Tensor) -> Embedded:
        """Images (B, C, H, W) in [0, 1] with patches hidden under ``mask_token`` (mask_dim,) where ``mask`` (B, N)."""
        raise NotImplementedError  # of networks with a mask_size

    def encode_patches(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Embedded images -> features, for ``classify``, and a token for each patch that can be hidden (B, N, D)."""
        raise NotImplementedError  # of networks with a mask_size

    def features_of(self, encoded: Tensor) -> Tensor:
        """The features in what ``encode`` returned: (B, D), of pixels (B, D, h, w)."""
        return encoded

    def features(self, images: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> features (B, D)."""
        return self.encode(self.embed(images), prompt)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] -> logits (B, K)."""
        return self.classify(self.features(images))
