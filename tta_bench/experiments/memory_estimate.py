"""Estimate the device memory of a method from one image on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tta_bench.methods.base import TTAMethod


class Memory(NamedTuple):
    """Lower bound of the bytes that a batch needs; views of the images that share a pass are not included."""

    weights: int  # of the network, its copies and the parameters that the method adds
    training: int  # gradients and the optimizer's moments
    activations: int  # of one forward pass, kept for the backward pass if there is one

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(self)

    def __str__(self) -> str:
        parts = (f"{name} {_readable(part)}" for name, part in zip(self._fields, self, strict=True))
        return f"{_readable(self.total)} ({', '.join(parts)})"


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def estimate_memory(method: TTAMethod, image: Tensor, batch_size: int) -> Memory:
    """Estimate the memory of a batch of this size.

    Args:
        method: The method, set up or not; it is not adapted.
        image: One image (1, C, H, W) in the form that the network expects.
        batch_size: Images per batch.
    """
    method.configure_model()
    tensors = {t.data_ptr(): t.nbytes for t in (*method.parameters(), *method.buffers())}
    trainable = sum(p.nbytes for p in method.parameters() if p.requires_grad)
    group: dict[str, Any] = method.optimizer.param_groups[0] if method.optimizer else {}
    moments = 2 if "betas" in group else 1 if group.get("momentum") else 0
    learns = trainable > 0 or method.optimizer is not None
    count = _kept if learns else _transient
    return Memory(sum(tensors.values()), trainable * (1 + moments), count(method, image) * batch_size)


def _kept(method: TTAMethod, image: Tensor) -> int:
    """Bytes that the backward pass of one image needs in addition to the weights."""
    weights = {t.untyped_storage().data_ptr() for t in (*method.parameters(), *method.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inside = any(p.requires_grad for p in method.backbone.parameters())
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # A parameter at the input, such as a prompt, needs the gradients of all later layers.
        logits = method.backbone(image if inside else image.clone().requires_grad_())
    del logits
    return sum(kept.values())


def _transient(method: TTAMethod, image: Tensor) -> int:
    """Bytes of the largest layer's input and output."""
    largest = 0

    def look(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal largest
        tensors = [t for t in (*inputs, output) if isinstance(t, Tensor)]
        largest = max(largest, sum(t.nbytes for t in tensors))

    hooks = [layer.register_forward_hook(look) for layer in method.backbone.modules() if not list(layer.children())]
    with torch.no_grad():
        method.backbone(image)
    for hook in hooks:
        hook.remove()
    return largest
