"""The source phase of methods that add parts to the network: train these on labeled source images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from torch import Tensor
from torch.optim import Optimizer

from tta_bench.methods.base import TTAMethod

Pairs = Iterable[tuple[Tensor, Tensor]]


def warm_up(
    method: TTAMethod, loader: Pairs, optimizer: Optimizer, loss: Callable[[Tensor, Tensor], Tensor], steps: int
) -> None:
    """Minimise a loss over the source images; parameters that ``optimizer`` does not hold are frozen meanwhile.

    Args:
        method: The method that is set up; its gradients are averaged over devices.
        loader: Batches of images (B, C, H, W) in [0, 1] and labels (B,); begun again as often as needed.
        optimizer: Holds the parameters to train.
        loss: From images and labels, on the device, to a scalar.
        steps: Number of updates; with 0 nothing happens.

    Raises:
        ValueError: If there are no source images or ``steps`` is negative.
    """
    if steps < 0:
        raise ValueError(f"method.warmup_steps must be 0 or more, got {steps}")
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    resting = [p for p in method.parameters() if p.requires_grad and id(p) not in trained]
    for p in resting:
        p.requires_grad_(False)
    for images, labels in islice(_endlessly(loader), steps):
        optimizer.zero_grad(set_to_none=True)
        method.backward(loss(images.to(method.device), labels.to(method.device)))
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for p in resting:
        p.requires_grad_(True)


def _endlessly(loader: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise ValueError("there are no source images to warm up on")
