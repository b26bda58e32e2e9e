"""In-place arithmetic on sets of weights: averages, restoring, sharpness, with fused kernels where available."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def ema_update(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Set teacher to momentum * teacher + (1 - momentum) * student, for all parameters that they do not share.

    Source: Mean teachers (Tarvainen & Valpola, NeurIPS 2017), Sec. 2; CoTTA (Wang et al., CVPR 2022), Eq. 2.
    """
    pairs = [(t, s) for t, s in zip(teacher.parameters(), student.parameters(), strict=True) if t is not s]
    lerp([t for t, _ in pairs], [s for _, s in pairs], 1 - momentum)


@torch.no_grad()
def lerp(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Move each tensor towards another by the fraction ``share`` of their difference."""
    if tensors:
        torch._foreach_lerp_(list(tensors), list(towards), share)


@torch.no_grad()
def stochastic_restore(
    parameters: Sequence[Tensor], source: Sequence[Tensor], draw_mask: Callable[[Tensor], Tensor]
) -> None:
    """Restore a random part of every tensor to its source value.

    Args:
        parameters: Tensors to change.
        source: Their source values.
        draw_mask: Draws a boolean mask with a tensor's shape on its device, True where it is restored.

    Source: CoTTA (Wang et al., CVPR 2022), Eq. 7-8.
    """
    for parameter, value in zip(parameters, source, strict=True):
        torch.where(draw_mask(parameter), value, parameter, out=parameter)


@torch.no_grad()
def sam_ascend(parameters: Sequence[nn.Parameter], rho: float) -> list[Tensor]:
    """Move the weights by ``rho`` along their gradients, to the nearby point of largest loss.

    Returns:
        The previous weights, for ``sam_return``.

    Source: SAM (Foret et al., ICLR 2021), Eq. 2; SAR (Niu et al., ICLR 2023), Eq. 4.
    """
    before = [p.detach().clone() for p in parameters]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    for p, g in zip(parameters, gradients, strict=True):
        p.add_(g * (rho / (norm + 1e-12)))
    return before


@torch.no_grad()
def sam_return(parameters: Sequence[nn.Parameter], before: Sequence[Tensor]) -> None:
    """Undo ``sam_ascend``, keeping the gradients for the step."""
    for p, value in zip(parameters, before, strict=True):
        p.copy_(value)
