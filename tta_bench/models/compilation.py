"""torch.compile for the passes of a network: one graph of static shapes for each kind of pass."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tta_bench.suggestions import did_you_mean

Mode = Literal["off", "default", "reduce-overhead", "max-autotune"]
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes in which a pass overwrites what an earlier one returned


class Compilation:
    """Compiles the passes of a backbone. Copies of the backbone (teachers) share it, and its graphs.

    Only batches of the size of the stream's first one are compiled. Others, such as the last images of a domain or a
    selection of images, pass through the same layers as without it, so that nothing is compiled again during a stream.

    Args:
        mode: Mode of ``torch.compile``, or ``off``.
        backend: Backend of ``torch.compile``.

    Attributes:
        batch_size: Size of the batches that are compiled; None before the stream.

    Raises:
        ValueError: If there is no such mode, or no C++ compiler, which the backend ``inductor`` needs.
    """

    def __init__(self, mode: Mode = "off", backend: str = "inductor") -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"torch.compile has no mode {mode!r}{did_you_mean(mode, get_args(Mode))}")
        if mode != "off" and backend == "inductor" and shutil.which(_cxx()) is None:
            raise ValueError(f"compile={mode} needs the C++ compiler {_cxx()}, which is missing: install it or set CXX")
        self.mode, self.backend = mode, backend
        self.batch_size: int | None = None
        self._compiled: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}

    def renewed(self) -> Compilation:
        """The same for another stream, without its graphs."""
        return Compilation(self.mode, self.backend)

    def begin(self, batch_size: int) -> None:
        """Begin a stream, or go on with it; ``batch_size`` is that of its next batch."""
        if self.mode != "off" and self.batch_size is None:
            self.batch_size = batch_size

    def __call__(self, layers: Callable[..., Tensor], batch_size: int, *inputs: Any) -> Tensor:
        """Pass a batch through layers, compiled if it has the size that is compiled.

        Args:
            layers: A method of a backbone that runs layers and does nothing else.
            batch_size: Number of images of the batch on all devices.
            inputs: The arguments of ``layers``.

        Raises:
            RuntimeError: If torch cannot compile the layers.
        """
        if batch_size != self.batch_size:
            return layers(*inputs)
        function, backbone = layers.__func__, layers.__self__  # type: ignore[attr-defined]  # of a bound method
        if not self._compiled:
            torch.compiler.reset()  # graphs of earlier streams count towards torch's limit
            torch._functorch.config.donated_buffer = False  # gradients that overflow float16 are computed again
        if function not in self._compiled:  # of the class, so that copies of the backbone share it
            self._compiled[function] = torch.compile(
                function, mode=self.mode, backend=self.backend, dynamic=False, fullgraph=True
            )
        try:
            found = self._compiled[function](backbone, *inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            why = str(error).strip().splitlines()[0]
            raise RuntimeError(f"torch cannot compile the network ({why}): set model.compile=off") from error
        return found.clone() if self.mode in CUDA_GRAPHS else found

    def __deepcopy__(self, memo: object) -> Compilation:
        return self


def _cxx() -> str:
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
