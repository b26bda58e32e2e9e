"""Speed-up of one stream on several devices, and the fraction of time spent on communication.

    python benchmarks/speed/devices.py --devices 1 2 --accelerator cpu
    python benchmarks/speed/devices.py --devices 1 2 4 8 --accelerator gpu --model vit_base_patch16_224 --size 224

Weights and images are random, since only the time matters. Prints one line per method and number of devices.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import timm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tta_bench.methods import METHODS
from tta_bench.models.backbones.vit import ViTBackbone


def measure(rank: int, ranks: int, port: int, args: argparse.Namespace) -> None:
    """Adapt to a few batches on one of several ranks; rank 0 prints the median time per batch."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    cuda = args.accelerator == "gpu"
    torch.set_num_threads(args.threads)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=ranks)
    for name in args.methods:
        torch.manual_seed(0)
        vit = timm.create_model(args.model, img_size=args.size, num_classes=100)
        settings = {"rho": 2.0, "steps_new": 1} if name == "dpcore" else {}  # rho 2: every batch counts as known
        method = METHODS[name](ViTBackbone(vit, (0.5,) * 3, (0.5,) * 3), **settings).to(device)
        method.configure_model()
        images = torch.rand(args.batch_size, 3, args.size, args.size, device=device)
        if name == "dpcore":
            method.fit_source([torch.rand(300, 3, args.size, args.size, device=device)])
        seconds, communication = [], 0.0
        for batch in range(args.batches + 1):
            started = now(device)
            if batch == 1:
                timer = Communication(device)
                timer.start()
            method.forward_and_adapt(images)
            seconds.append(now(device) - started)
        communication = timer.stop()
        if rank == 0:
            median = sorted(seconds[1:])[len(seconds[1:]) // 2]
            share = 100 * communication / sum(seconds[1:])
            print(f"{name:8} {ranks} devices  {1e3 * median:9.1f} ms per batch  {share:5.1f} % in communication")
    if ranks > 1:
        dist.destroy_process_group()


class Communication:
    """Measures the total time in the two collectives used to split batches."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.originals = {name: getattr(dist, name) for name in ("all_gather", "all_reduce")}

    def start(self) -> None:
        """Wrap the collectives."""
        for name, original in self.originals.items():
            setattr(dist, name, self._timed(original))

    def stop(self) -> float:
        """Unwrap them and return the total seconds."""
        for name, original in self.originals.items():
            setattr(dist, name, original)
        return self.seconds

    def _timed(self, collective):
        def timed(*args, **kwargs):
            started = now(self.device)
            result = collective(*args, **kwargs)
            self.seconds += now(self.device) - started
            return result

        return timed


def now(device: torch.device) -> float:
    """Synchronise the device and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Parse the arguments and measure each number of devices in separate processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--accelerator", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--methods", nargs="+", default=["source", "tent", "dpcore"])
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per process")
    args = parser.parse_args()
    for ranks in args.devices:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(measure, args=(ranks, port, args), nprocs=ranks)


if __name__ == "__main__":
    main()
