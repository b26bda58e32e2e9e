"""The interface through which methods use the adapted network, and the counter of its passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tta_bench.models.compilation import Compilation
from tta_bench.models.parallel import gather, share_of
from tta_bench.models.precision import NetworkPrecision, half_in, network_pass, store_matrices
from tta_bench.models.preprocess import Preprocess, enlarge, resize_and_crop, to_unit


class PassMeter:
    """Counts images that pass forward and backward through a backbone. Copies of the backbone (teachers) share it.

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
        """Count a forward pass that returned ``features`` (N, D), and its backward pass when it happens."""
        self.forward_samples += len(features)
        if features.requires_grad:
            features.register_hook(self._count_backward)

    def _count_backward(self, grad: Tensor) -> None:
        reached = (grad.detach().flatten(1) != 0).any(dim=1).sum()
        self._backward_samples = self._backward_samples.to(reached.device) + reached

    def __deepcopy__(self, memo: object) -> PassMeter:
        return self


class Embedded(NamedTuple):
    """Embedded images of one batch; opaque to methods, which only pass them to ``encode``."""

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
        """Normalise images (B, C, H, W) in [0, 1].

        Raises:
            TypeError: If the images are not floats: uint8 images would give meaningless scores.
        """
        if not images.is_floating_point():
            raise TypeError("the network takes floats in [0, 1]: convert images with backbone.prepare(images)")
        return (images - self.mean) / self.std


class Backbone(nn.Module):
    """A source model in three steps: ``embed`` images, ``encode`` to features, ``classify``.

    Methods call only these three (or ``features``, or ``forward`` for all of them) and nothing else of the network.
    Every pass through ``encode`` is counted in ``meter``, and ``encode`` is where a batch is split over several
    devices. The output of ``embed`` stays constant while prompts are optimised on a batch.

    A segmentation network (``segments``) has maps (B, D, h, w) as features and logits (B, K, H, W). Its ``classify``
    needs more than the last map, so the output of ``encode`` is opaque: it (or its ``detach()``) is passed to
    ``classify``, and ``features_of`` extracts the features. For all other networks it is the features.

    Attributes:
        feature_dim: Width D of a feature.
        prompt_dim: Width of a prompt token, None if the network takes no prompts.
        num_classes: Number of classes K.
        segments: Whether the network scores every pixel, (B, K, H, W).
        patch_size: Side of a patch in pixels, None if there are no patches.
        mask_size: Side in pixels of the patches that ``embed_masked`` can mask, None if masking is not supported.
        mask_dim: Width of the mask token.
        image_size: Side of the images in pixels, None if the network takes any size.
        preprocess: Preprocessing of images: ``prepare`` resizes them, and the network's first operation normalises.
        source_preprocess: Preprocessing of the source images that a method is fitted on; None if it is the same.
        weights_sha256: Hash of the source weights, set by ``load_model``.
        weights_origin: Where the weights were in their file: key, prefix and alternatives; None if downloaded.
        kept_classes: Classes of the weights that are scored, None for all: see ``keep_classes``.
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

    @property
    def patch_dim(self) -> int:
        """Width of a patch token of ``encode_patches``."""
        return self.feature_dim

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.preprocess = Preprocess("own", tuple(mean), tuple(std))
        self.source_preprocess: Preprocess | None = None
        self.meter = PassMeter()
        self.precision = NetworkPrecision()
        self.compilation = Compilation()

    @property
    def dtype(self) -> torch.dtype:
        """Precision of what methods get from the network, and of what they add to it: at least float32."""
        return torch.promote_types(next(self.parameters()).dtype, torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As for every module; in half precision, only the matrices and kernels are stored."""
        if (half := half_in(*args, **kwargs)) is None:
            return super().to(*args, **kwargs)
        store_matrices(self, half)
        self.precision.stored = self.precision.computed = half
        return self

    def prepare(self, images: Tensor) -> Tensor:
        """Convert stored images to the input of the network, which methods may augment.

        Images are resized and cropped if ``preprocess`` says so, then enlarged if they are still smaller than the
        network's input. This is the only place where that happens: ``method(images)`` and ``method.fit_source(loader)``
        call it.

        Args:
            images: (B, C, H, W) uint8, or floats in [0, 1].

        Returns:
            (B, C, image_size, image_size) in [0, 1], or in their own size if the network takes any size.

        Raises:
            ValueError: If floats are not in [0, 1], or if the images are larger than the network's input or not
                square while ``preprocess`` does not resize.
        """
        images, resize = to_unit(images), self.preprocess.resize
        return enlarge(images if resize is None else resize_and_crop(images, *resize), self.image_size)

    @contextmanager
    def on_source(self) -> Iterator[None]:
        """Context in which images are resized and normalised as source images."""
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

    def _classify(self, features: Tensor) -> Tensor:
        raise NotImplementedError  # a subclass wraps its network's head here

    def _embed_normalized(self, images: Tensor) -> Tensor:
        return self._embed(self.normalize(images))

    @network_pass
    def embed(self, images: Tensor) -> Embedded:
        """Embed images (B, C, H, W) in [0, 1] for ``encode``."""
        share = images[share_of(len(images))]
        return Embedded(self.compilation(self._embed_normalized, len(images), share), len(images))

    @network_pass
    def encode(self, embedded: Embedded, prompt: Tensor | None = None) -> Tensor:
        """Compute features (B, D) of embedded images, optionally with prompt tokens (L, prompt_dim)."""
        features = self.compilation(self._encode, embedded.batch_size, embedded.tokens, prompt)
        features = gather(features, embedded.batch_size)
        self.meter.observe(features)
        return features

    @network_pass
    def classify(self, features: Tensor) -> Tensor:
        """Compute logits (B, K) from features (B, D)."""
        return self.compilation(self._classify, len(features), features)

    def embed_masked(self, images: Tensor, mask: Tensor, mask_token: Tensor) -> Embedded:
        """Embed images (B, C, H, W) in [0, 1], with ``mask_token`` (mask_dim,) for patches where ``mask`` (B, N)."""
        raise NotImplementedError  # only networks with a mask_size implement it

    def encode_patches(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Compute features for ``classify`` and a token for each maskable patch (B, N, D)."""
        raise NotImplementedError  # only networks with a mask_size implement it

    def features_of(self, encoded: Tensor) -> Tensor:
        """Extract the features from the output of ``encode``: (B, D), or (B, D, h, w) of segmentation networks."""
        return encoded

    def features(self, images: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Compute features (B, D) of images (B, C, H, W) in [0, 1]."""
        return self.encode(self.embed(images), prompt)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, C, H, W) in [0, 1]."""
        return self.classify(self.features(images))
