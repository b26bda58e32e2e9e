"""What peers.py and gpu.py measure: methods on random weights and images, where only the time matters."""

from __future__ import annotations

import argparse
import copy
import math
import time
from typing import Any

import timm
import torch
from torch import Tensor

from tta_bench.methods import METHODS
from tta_bench.methods.base import TTAMethod
from tta_bench.models.backbones.vit import ViTBackbone
from tta_bench.models.compilation import Compilation, Mode
from tta_bench.types import SourceNeed

CLASSES = 1000
# DPCore takes every batch after its first one for known if rho is infinite, and every batch for new if it is zero.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "dpcore known": ("dpcore", {"rho": math.inf, "steps_new": 1}),
    "dpcore new": ("dpcore", {"rho": 0.0}),
    "tent": ("tent", {}),
    "cotta": ("cotta", {}),
    "sar": ("sar", {}),
    "eta": ("eta", {}),
    "eata": ("eata", {}),
}


def add_arguments(parser: argparse.ArgumentParser, batch_size: int) -> None:
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--depth", type=int, default=12, help="number of blocks")
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--batches", type=int, default=5, help="batches measured per method")
    parser.add_argument("--steps-new", type=int, default=50, help="steps of DPCore on a new batch")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")


def network(args: argparse.Namespace, classes: int = CLASSES) -> Any:
    """A vision transformer whose predictions are sure enough for methods that select images."""
    torch.manual_seed(0)
    vit: Any = timm.create_model(args.model, img_size=args.size, depth=args.depth, num_classes=classes)
    torch.nn.init.normal_(vit.head.weight, std=5 / math.sqrt(vit.embed_dim))
    return vit.eval()


def ours(case: str, vit: Any, args: argparse.Namespace, compile: Mode = "off") -> TTAMethod:
    """Our method on a copy of the network, fitted to its source."""
    name, settings = CASES[case]
    backbone = ViTBackbone(copy.deepcopy(vit), (0.0,) * 3, (1.0,) * 3).eval()
    backbone.compilation = Compilation(compile)
    if name in ("dpcore", "eata"):
        settings = {**settings, "num_source": args.batch_size}
    if case == "dpcore new":
        settings["steps_new"] = args.steps_new
    method = METHODS[name](backbone, **settings).to(device())
    if method.source_need is not SourceNeed.NOTHING:
        method.fit_source([images(args)])
    return method


def images(args: argparse.Namespace) -> Tensor:
    """A batch (B, 3, H, W) in [0, 1]."""
    return torch.rand(args.batch_size, 3, args.size, args.size, device=device())


def device() -> torch.device:
    """The GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def now() -> float:
    """Seconds: CPU time, which other programs do not change, or wall time after synchronising with the GPU."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()
