"""One stream on several devices: the method's state must be identical on all ranks."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as L
import torch
import torch.distributed as dist

from tta_bench.callbacks.monitor import AdaptationMonitor
from tta_bench.methods.base import TTAMethod


class RankAgreement(L.Callback):
    """Compares the ranks every few batches and aborts the run if they differ. Does nothing on a single device.

    Args:
        monitor: The monitor of the same run; it must come before this callback in the trainer's list.
        every: Batches between two comparisons; the ranks are always compared after the last batch.
    """

    def __init__(self, monitor: AdaptationMonitor, every: int = 20) -> None:
        self.monitor, self.every = monitor, every

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Compare the ranks every ``every`` batches and after the last one."""
        last = batch_idx + 1 == sum(trainer.num_test_batches)
        due = last or (batch_idx + 1) % self.every == 0
        if due and trainer.world_size > 1 and isinstance(pl_module, TTAMethod):
            check_agreement(pl_module, sum(self.monitor.tally.wrong.values()))


def check_agreement(method: TTAMethod, wrong: float) -> None:
    """Compare the adapted state of a method across all ranks, bit for bit.

    Args:
        method: The method on this rank.
        wrong: Number of wrong predictions so far.

    Raises:
        RuntimeError: If the ranks differ; the message names the first tensor that does.
    """
    tensors = method.adaptation_state()["tensors"]
    digests = {"the number of wrong predictions": float(wrong)}
    digests |= {f"the size of {name}": float(value.numel()) for name, value in tensors.items()}
    digests |= {name: value.double().sum().item() for name, value in tensors.items()}
    mine = torch.tensor(list(digests.values()), dtype=torch.float64, device=method.device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    for rank, theirs in enumerate(everyone):
        differs = (theirs != everyone[0]) & ~(theirs.isnan() & everyone[0].isnan())
        if differs.any():
            name = list(digests)[int(differs.nonzero()[0])]
            raise RuntimeError(f"the devices disagree: {name} differs between rank 0 and rank {rank}")
