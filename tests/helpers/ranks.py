"""Several processes that share a batch, as DDP starts them."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(world, function, *arguments):
    """What a function of a module returns on the last of several ranks: not rank 0, what every rank holds counts.

    It must not return tensors: their memory ends with the process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(_rank, args=(world, port, queue, function, arguments), nprocs=world, join=False)
    found = queue.get()
    context.join()
    return found


def _rank(rank, world, port, queue, function, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    found = function(*arguments)
    if rank == world - 1:
        queue.put(found)
    dist.barrier()
    dist.destroy_process_group()
