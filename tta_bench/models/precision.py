"""Half precision inside the network only: what methods measure, compare and learn keeps its digits."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from tta_bench.functional.entropy import at_least_float32

HALF = (torch.float16, torch.bfloat16)
Door = TypeVar("Door", bound=Callable[..., Any])


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Create tensors in float32 where Lightning has made half precision the default; float64 stays."""
    default = torch.get_default_dtype()
    if default in HALF:
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


class NetworkPrecision:
    """In which half precision the passes of a backbone are computed. Copies of the backbone (teachers) share it.

    Attributes:
        stored: The precision in which the frozen matrices are stored, None for that of their file.
        computed: The precision of this pass, None for that of the weights.
    """

    def __init__(self) -> None:
        self.stored: torch.dtype | None = None
        self.computed: torch.dtype | None = None

    @contextmanager
    def inside_the_network(self, device: str) -> Iterator[None]:
        """Confine an autocast, or a default type of half precision, around this call to the passes of the network.

        Args:
            device: Type of the device, such as ``cuda``.
        """
        around = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.computed = around or self.stored
        try:
            with torch.autocast(device, enabled=False), float32_by_default():
                yield
        finally:
            self.computed = self.stored

    def __deepcopy__(self, memo: object) -> NetworkPrecision:
        return self


def network_pass(method: Door) -> Door:
    """Decorate a method of a backbone that runs layers: it computes in the network's precision.

    Tensors in half precision are returned in float32, so that statistics, distances and entropies keep their digits.
    What is opaque, such as embedded images, stays as it is.
    """

    @wraps(method)
    def computed(backbone: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = backbone.precision.computed
        if dtype is None:
            return method(backbone, *args, **kwargs)
        device = next(backbone.parameters()).device.type
        with torch.autocast(device, dtype=dtype, cache_enabled=False):
            found = method(backbone, *args, **kwargs)
        return tuple(map(_readable, found)) if type(found) is tuple else _readable(found)

    return cast(Door, computed)


def _readable(found: Any) -> Any:
    return at_least_float32(found) if isinstance(found, Tensor) else found


def set_matmul(wanted: str | None, device: torch.device) -> None:
    """Set how float32 matrices are multiplied and convolved: see ``torch.set_float32_matmul_precision``.

    Args:
        wanted: ``highest``, ``high`` (TF32) or ``medium``; None takes ``high`` on a GPU with TF32, else ``highest``.
        device: Where the network runs.
    """
    if wanted is None:
        wanted = "high" if device.type == "cuda" and torch.cuda.is_tf32_supported() else "highest"
    torch.set_float32_matmul_precision(wanted)
    torch.backends.cudnn.allow_tf32 = wanted != "highest"  # PyTorch allows it in convolutions by default


def half_in(*args: Any, **kwargs: Any) -> torch.dtype | None:
    """The half precision among the arguments of ``module.to``, if there is one."""
    return next((value for value in (*args, *kwargs.values()) if value in HALF), None)


def store_matrices(network: nn.Module, dtype: torch.dtype, learned: Container[str] = (), prefix: str = "") -> None:
    """Store the frozen matrices and kernels of a network in half precision.

    Biases, norms and what is learned stay: a step of 1e-4 on a weight of 1 would be rounded away.

    Args:
        network: The network.
        dtype: The precision.
        learned: Names of parameters that change during the stream.
        prefix: What these names begin with.
    """
    for name, parameter in network.named_parameters(prefix):
        if parameter.ndim > 1 and name not in learned:
            parameter.data = parameter.data.to(dtype)
