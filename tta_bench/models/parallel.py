"""Several devices for one stream: a batch is split before the backbone's encoder and gathered after it.

Every rank sees the whole batch and runs the same method with the same random numbers. Only the backbone is divided:
each rank forwards a contiguous share of the images, and the features are gathered. Statistics, losses and decisions
are thus those of the whole batch on every rank, without the method knowing.

Gradients: every rank computes the loss of the whole batch, so parameters after the gather (such as the head) have their
full gradient on every rank, and parameters before it only the part of this rank's images. Backward through the gather
multiplies by the number of ranks; the mean over ranks is then the full gradient of both, so that one reduction serves
all parameters.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """Number of ranks that share one stream."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def share_of(batch_size: int) -> slice:
    """This rank's rows of a batch, contiguous, with sizes that differ by at most one; all if fewer than ranks."""
    ranks = world_size()
    if ranks == 1 or batch_size < ranks:
        return slice(0, batch_size)
    size, longer = divmod(batch_size, ranks)
    start = dist.get_rank() * size + min(dist.get_rank(), longer)
    return slice(start, start + size + (dist.get_rank() < longer))


class _Gather(torch.autograd.Function):
    """Gathers shares (b, D) of all ranks to the whole batch (B, D)."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, share: Tensor, batch_size: int) -> Tensor:
        ranks = dist.get_world_size()
        ctx.rows = share_of(batch_size)  # type: ignore[attr-defined]  # torch's stubs lack custom attributes
        longest = -(-batch_size // ranks)
        padded = share.new_zeros(longest, *share.shape[1:])
        padded[: len(share)] = share
        parts = [torch.empty_like(padded) for _ in range(ranks)]
        dist.all_gather(parts, padded)
        size, longer = divmod(batch_size, ranks)
        return torch.cat([part[: size + (rank < longer)] for rank, part in enumerate(parts)])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        return grad[ctx.rows] * dist.get_world_size(), None  # type: ignore[attr-defined]  # as above


def gather(share: Tensor, batch_size: int) -> Tensor:
    """Gather features (B, D) of the whole batch from this rank's share, bit-identical on every rank."""
    if world_size() == 1 or batch_size < world_size():
        return share
    whole: Tensor = _Gather.apply(share, batch_size)
    return whole


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradients by their mean over ranks, in one reduction."""
    if world_size() == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return
    bucket = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for grad, part in zip(grads, bucket.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))
