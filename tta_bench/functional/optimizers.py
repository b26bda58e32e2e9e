"""The two optimizers that most methods offer, and their fastest kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer


def sgd_or_adam(
    parameters: Sequence[nn.Parameter],
    name: Literal["sgd", "adam"],
    *,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> Optimizer:
    """Create an optimizer without weight decay.

    Args:
        parameters: Parameters to optimize.
        name: ``sgd``, or ``adam`` with betas 0.9 and 0.999, which ignores all arguments after ``lr``.
        lr: Learning rate.
        momentum: Momentum of SGD.
        nesterov: Whether SGD uses Nesterov momentum.
    """
    if name == "adam":
        return Adam(parameters, lr=lr)
    return SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov)


def fused(optimizer: Optimizer | None) -> Optimizer | None:
    """Let an optimizer update all its parameters in one kernel, where torch has one: the same numbers up to rounding.

    Args:
        optimizer: Any; only SGD, Adam and AdamW of torch are changed, and only groups that have not chosen a kernel.
    """
    if optimizer is not None and type(optimizer) in (SGD, Adam, AdamW):
        for group in optimizer.param_groups:
            known = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in group["params"])
            if known and group["fused"] is None and not group["foreach"]:
                group["fused"] = True
    return optimizer
