"""Cost of saving states: size and time of one state, and the fraction of a run's time at the default interval.

    python benchmarks/speed/checkpoint.py
    python benchmarks/speed/checkpoint.py --model vit_base_patch16_224 --size 224 --batch-size 1 --images 0

Weights and images are random, since only the time matters. ``all_parameters`` is Tent with all weights trainable, the
largest state of a method with one model. A run with a real trainer and a short interval also measures the rule that
extends the interval.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import lightning.pytorch as L
import timm
import torch

from tta_bench.callbacks import AdaptationMonitor, StateFiles, StreamCheckpoint
from tta_bench.data.datamodule import StreamDataModule, schedule_for
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.methods import METHODS, Tent
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.zoo import shapes_vit  # noqa: F401  (registers the name with timm)


class AllParameters(Tent):
    """Tent with all weights trainable, which are then all part of the state."""

    def configure_adaptation(self) -> None:
        """Train everything."""
        super().configure_adaptation()
        self.backbone.requires_grad_(True)
        self.adapted = list(self.backbone.parameters())


class Timed(StateFiles):
    """Records how long each write took."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seconds: list[float] = []

    def write(self, state: dict) -> None:
        """Write a state and record the time."""
        started = time.perf_counter()
        super().write(state)
        self.seconds.append(time.perf_counter() - started)


def build(name: str, args: argparse.Namespace) -> Tent:
    torch.manual_seed(0)
    vit = timm.create_model(args.model, img_size=args.size, num_classes=10)
    backbone = ViTBackbone(vit, (0.5,) * 3, (0.5,) * 3).eval()
    if name == "dpcore":
        method = METHODS[name](backbone, rho=2.0, steps_new=1, num_source=64)
        method.fit_source([torch.rand(64, 3, args.size, args.size)])
        return method
    method = AllParameters(backbone) if name == "all_parameters" else METHODS[name](backbone)
    method.configure_model()
    return method


def one_state(name: str, folder: Path, args: argparse.Namespace) -> None:
    method, files = build(name, args), Timed(folder)
    method.forward_and_adapt(torch.rand(args.batch_size, 3, args.size, args.size))
    for _ in range(5):
        files.write({"adaptation": method.adaptation_state()})
    seconds, megabytes = median(files.seconds), files.newest.stat().st_size / 1e6
    share = 100 * seconds / (seconds + max(60, seconds / 0.02))
    print(f"{name:15} {megabytes:7.2f} MB  {1e3 * seconds:8.1f} ms (slowest {1e3 * max(files.seconds):.1f})"
          f"  {share:6.3f} % at one state a minute", flush=True)  # fmt: skip


def a_run(name: str, folder: Path, args: argparse.Namespace) -> None:
    domains = shapes_c(num_images=args.images)
    schedule = schedule_for(domains, "csc", batch_size=args.batch_size)
    (folder / "batches.csv").unlink(missing_ok=True)
    monitor, files = AdaptationMonitor(rows=folder / "batches.csv"), Timed(folder)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, inference_mode=False, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[monitor, StreamCheckpoint(files, monitor, seconds=args.interval)],
    )  # fmt: skip
    started = time.perf_counter()
    trainer.test(build(name, args), StreamDataModule(domains, schedule), verbose=False)
    whole = time.perf_counter() - started
    print(f"{name:15} run of {whole:.1f} s, at least {args.interval} s apart: {len(files.seconds)} states, "
          f"{100 * sum(files.seconds) / whole:.3f} % of the time")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="shapes_vit")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--methods", nargs="+", default=["tent", "dpcore", "all_parameters"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=64, help="images per domain in the real run; 0 skips it")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two states in the real run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder of the states; by default a temporary folder")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.methods:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            one_state(name, Path(folder), args)
            if args.images:
                a_run(name, Path(folder), args)


if __name__ == "__main__":
    main()
