"""How methods take the unlabeled source images that they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from tta_bench.methods.base import TTAMethod


def take_source_images(
    method: TTAMethod,
    loader: Iterable[Tensor],
    count: int,
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    condition: str = "",
) -> Iterator[Tensor]:
    """Exactly ``count`` source images, in the loader's batches and order; no more batches are asked for.

    Args:
        method: The method that asks, on whose device the images are.
        loader: Batches of images (B, C, H, W) in [0, 1].
        count: How many images.
        keep: Which images of a batch count: images to a mask (B,); None takes all.
        condition: What ``keep`` asks for, in the words of a configuration.

    Yields:
        Batches of images (B, C, H, W), the last one cut; none is empty.

    Raises:
        ValueError: If there are fewer images.
    """
    left = count
    for batch in loader:
        images = batch.to(method.device)
        if keep is not None:
            images = images[keep(images)]
        if len(images := images[:left]):
            yield images
        if not (left := left - len(images)):
            return
    found = f"{count - left}{' with ' * bool(condition)}{condition}"
    raise ValueError(f"{type(method).__name__} needs {count} source images but got {found}: lower num_source")
