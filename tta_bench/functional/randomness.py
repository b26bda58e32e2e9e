"""Random numbers that are the same whatever else runs, on any device."""

from __future__ import annotations

import torch


def spawn(rng: torch.Generator, device: torch.device) -> torch.Generator:
    """A new generator on ``device``, seeded by one draw from ``rng``: so only ``rng`` is state."""
    seed = int(torch.randint(2**62, (), generator=rng))
    return torch.Generator(device).manual_seed(seed)
