"""The rank of this process. Standard library only, so that it is quickly available to the command line."""

from __future__ import annotations

import os

# Environment variables that Lightning, torchrun and SLURM set in the processes that they start.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


def is_worker(devices: object) -> bool:
    """Whether another process is the main process of this run; this one then writes and prints nothing.

    A run on one device is always its own main process: the rank is then that of a cluster task, not of this run.
    """
    ranks = (os.environ.get(name, "0") for name in RANK_VARIABLES)
    return not is_single_device(devices) and any(rank not in ("", "0") for rank in ranks)


def is_single_device(devices: object) -> bool:
    """Whether the trainer's ``devices`` means a single device."""
    return str(devices) == "1" or (isinstance(devices, list) and len(devices) == 1)


def is_launched() -> bool:
    """Whether the processes of this run were started externally, one per device."""
    return any(name in os.environ for name in ("RANK", "LOCAL_RANK"))
