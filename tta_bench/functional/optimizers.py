"""The two optimizers that most methods offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn
from torch.optim import SGD, Adam, Optimizer


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
