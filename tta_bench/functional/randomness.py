"""Random numbers that do not depend on other code, on any device."""

from __future__ import annotations

import torch


def spawn(rng: torch.Generator, device: torch.device) -> torch.Generator:
    """Create a generator on ``device``, seeded by one draw from ``rng``, so that only ``rng`` is state."""
    seed = int(torch.randint(2**62, (), generator=rng))
    return torch.Generator(device).manual_seed(seed)
