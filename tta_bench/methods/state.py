"""What a stream may change in a method, and how the method gets back to what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn


class MethodState:
    """The tensors of a method that a stream changes, and their values before it.

    Args:
        method: The method; its parameters and buffers are looked up by name whenever they are needed, as buffers may
            grow or be replaced.

    Attributes:
        copies: Names of copies of the backbone.
        initial: Values before the stream: what ``reset`` returns to.
    """

    def __init__(self, method: nn.Module) -> None:
        self.method = method
        self.copies: list[str] = []
        self.initial: dict[str, Tensor] = {}
        self._source: list[str] = []  # buffers of what was measured of the source, which a reset keeps
        self._trained: list[str] = []  # what learned from the source
        self._moving: set[str] = set()  # weights of teachers

    def add(self, name: str, default: Tensor, *, source: bool) -> None:
        """Register a buffer; one of the ``source`` is kept by a reset."""
        self.method.register_buffer(name, default.detach().clone())
        if source:
            self._source.append(name)

    def add_copy(self, name: str, network: nn.Module, *, moves: bool) -> None:
        """Register a copy of a network without gradients, which shares the weights that are frozen now."""
        shared = {id(p): p for p in network.parameters() if not p.requires_grad}
        twin = deepcopy(network, dict(shared)).requires_grad_(False)
        self.method.add_module(name, twin)
        self.copies.append(name)
        if moves:
            self._moving |= {f"{name}.{key}" for key, p in twin.named_parameters() if id(p) not in shared}

    def changeable(self) -> dict[str, Tensor]:
        """Trainable parameters, weights of teachers, and buffers that do not belong to the source, by name."""
        named = self.method.named_parameters()
        parameters = {name: p.data for name, p in named if p.requires_grad or name in self._moving}
        return parameters | {name: b for name, b in self.method.named_buffers() if name not in self._source}

    def remember(self) -> None:
        """Take the values of this moment for those before the stream."""
        self.initial = {name: value.clone() for name, value in self.changeable().items()}

    def remember_trained(self) -> None:
        """The same after learning from the source; what has changed by it belongs to the state of the source."""
        before = self.initial
        self._trained = [name for name, value in self.changeable().items() if not torch.equal(value, before[name])]
        self.remember()

    def initial_of(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """Values before the stream of these parameters."""
        names = {id(p): name for name, p in self.method.named_parameters()}
        return [self.initial[names[id(p)]] for p in parameters]

    def assign(self, values: Mapping[str, Tensor]) -> None:
        """Copy into parameters; replace buffers, which may have grown."""
        parameters = dict(self.method.named_parameters())
        device = next(iter(parameters.values())).device
        for name, value in values.items():
            if name in parameters:
                parameters[name].data.copy_(value)
            else:
                owner, _, leaf = name.rpartition(".")
                setattr(self.method.get_submodule(owner), leaf, value.to(device, copy=True))

    def move(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Bring the initial values to where the method goes."""
        self.initial = {name: fn(value) for name, value in self.initial.items()}

    def of_source(self) -> dict[str, Tensor]:
        """What was measured and trained on the source."""
        return self._measured() | self._trained_values()

    def take_source(self, values: Mapping[str, Tensor]) -> None:
        """Take back what ``of_source`` gave."""
        self.assign(values)
        self._take_trained({name: value for name, value in values.items() if name not in self._source})

    def snapshot(self) -> dict[str, dict[str, Tensor]]:
        """All values of this moment, and those before the stream of what learned from the source."""
        return {"tensors": self.changeable() | self._measured(), "initial": self._trained_values()}

    def restore(self, tensors: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> None:
        """Take back the two parts of a ``snapshot``."""
        self.assign(tensors)
        self._take_trained(initial)

    def _measured(self) -> dict[str, Tensor]:
        return {name: self.method.get_buffer(name) for name in self._source}

    def _trained_values(self) -> dict[str, Tensor]:
        return {name: self.initial[name] for name in self._trained}

    def _take_trained(self, values: Mapping[str, Tensor]) -> None:
        device = next(self.method.parameters()).device
        self._trained = list(values)
        self.initial |= {name: value.to(device, copy=True) for name, value in values.items()}
