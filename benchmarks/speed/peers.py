"""Time per batch against released code: both methods in one process, on the same weights and images, in turn.

    git clone <the repository of a method>
    python -m benchmarks.speed.peers DPCore/ SAR/ --batch-size 16 --batches 5
    python -m benchmarks.speed.peers DPCore/ --methods dpcore --compile default --model vit_tiny_patch16_224

Nothing is fetched. A repository is searched for the files tent.py, sar.py, eata.py (as ETA), cotta.py and dpcore.py,
with the interface that the authors of Tent gave theirs; they are imported, and so executed. On a CPU, where the
released code's calls of ``cuda`` would fail, tensors stay where they are. The released DPCore needs a network of width
768, CoTTA images of 224 pixels.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch

from benchmarks.speed.cases import add_arguments, device, images, network, now, ours

Step = Callable[[torch.Tensor], Any]


def _norms(file: ModuleType, vit: Any) -> tuple[Any, torch.optim.Optimizer]:
    model = file.configure_model(vit)
    return model, torch.optim.SGD(file.collect_params(model)[0], lr=1e-3, momentum=0.9)


def _tent(file: ModuleType, vit: Any, args: argparse.Namespace) -> Step:
    return file.Tent(*_norms(file, vit))


def _eta(file: ModuleType, vit: Any, args: argparse.Namespace) -> Step:
    return file.EATA(*_norms(file, vit), fishers=None)


def _cotta(file: ModuleType, vit: Any, args: argparse.Namespace) -> Step:
    return file.CoTTA(*_norms(file, vit))


def _sar(file: ModuleType, vit: Any, args: argparse.Namespace) -> Step:
    model = file.configure_model(vit)
    sam = importlib.import_module("sam").SAM(file.collect_params(model)[0], torch.optim.SGD, lr=1e-3, momentum=0.9)
    return file.SAR(model, sam)


def _dpcore(rho: float) -> Callable[[ModuleType, Any, argparse.Namespace], Step]:
    def build(file: ModuleType, vit: Any, args: argparse.Namespace) -> Step:
        model = importlib.import_module("vpt").PromptViT(vit, 8).to(device()).train()
        optimizer = torch.optim.AdamW([model.prompts], lr=0.1)
        steps = args.steps_new if rho == 0 else 1
        method = file.DPCore(model, optimizer, temp_tau=3.0, ema_alpha=0.999, thr_rho=rho, E_OOD=steps)
        with torch.no_grad():
            method.train_info = torch.std_mean(model.forward_raw_features(images(args))[:, 0], dim=0)
        return method

    return build


PEERS = {  # our case: the released file, and how its method is built
    "tent": ("tent", _tent),
    "sar": ("sar", _sar),
    "eta": ("eata", _eta),
    "cotta": ("cotta", _cotta),
    "dpcore known": ("dpcore", _dpcore(1e9)),
    "dpcore new": ("dpcore", _dpcore(0.0)),
}


def released(repository: Path, name: str) -> ModuleType | None:
    """The module ``name`` of a repository, imported anew since repositories share names; None if there is none."""
    found = sorted(repository.rglob(f"{name}.py"))
    if not found:
        return None
    folder = str(found[0].parent)
    for known in [key for key, module in sys.modules.items() if key in ("sam", "vpt", name) and module]:
        del sys.modules[known]
    sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    return importlib.import_module(name)


def compare(theirs: Step, mine: Step, args: argparse.Namespace) -> tuple[float, float]:
    """Median seconds per batch of both, in turn on the same batches; the first batch of each warms up."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for batch in range(args.batches + 1):
        given = images(args)
        for step, times in zip((theirs, mine), seconds, strict=True):
            started = now()
            step(given)
            if batch:
                times.append(now() - started)
    return median(seconds[0]), median(seconds[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path, help="folders of checked-out repositories")
    parser.add_argument("--methods", nargs="+", choices=sorted({case.split()[0] for case in PEERS}))
    parser.add_argument("--compile", default="off", help="our model.compile")
    add_arguments(parser, batch_size=16)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not torch.cuda.is_available():
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    vit, compared = network(args).to(device()), 0
    print(f"{'method':13} {'repository':20} {'released':>12} {'ours':>12}  ratio")
    for repository in args.repositories:
        for case, (name, build) in PEERS.items():
            if args.methods and case.split()[0] not in args.methods:
                continue
            if (file := released(repository, name)) is None:
                continue
            pair = build(file, copy.deepcopy(vit), args), ours(case, vit, args, args.compile)
            theirs, mine = compare(*pair, args)
            print(f"{case:13} {repository.name:20} {1e3 * theirs:9.1f} ms {1e3 * mine:9.1f} ms  {mine / theirs:.2f}",
                  flush=True)  # fmt: skip
            compared += 1
    if not compared:
        files = ", ".join(sorted({f"{name}.py" for name, _ in PEERS.values()}))
        sys.exit(f"error: no released method in {', '.join(map(str, args.repositories))}: expected one of {files}")


if __name__ == "__main__":
    main()
