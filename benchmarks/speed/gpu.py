"""Time per batch on this machine in each precision, eager and compiled, and the engine's share: one JSON.

    python -m benchmarks.speed.gpu > speed.json
    python -m benchmarks.speed.gpu --methods tent "dpcore new" --compile off reduce-overhead

Weights and images are random. It ends after ``--seconds``; what was not reached is listed under "not_measured", so the
cases that matter most come first. Without a GPU it measures CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import lightning.pytorch as L
import torch

from benchmarks.speed.cases import CASES, add_arguments, device, images, network, now, ours
from tta_bench.callbacks import AdaptationMonitor
from tta_bench.models.precision import set_matmul
from tta_bench.testing.toy import NUM_CLASSES, toy_data

PRECISIONS = ("tf32", "bf16", "fp32")
METHODS = ("tent", "dpcore known", "dpcore new", "source", "sar", "eata", "cotta")


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Float32 with or without TF32, or bfloat16 passes of the network."""
    set_matmul("high" if precision == "tf32" else "highest", device())
    with torch.autocast(device().type, torch.bfloat16, enabled=precision == "bf16"):
        yield


def milliseconds(case: str, precision: str, compile: Any, vit: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Median time per batch, and seconds for the first two, in which the network is compiled."""
    with computing_in(precision):
        method, given, seconds = ours(case, vit, args, compile), images(args), []
        began = time.perf_counter()
        for _ in range(2):
            method(given)
        now()
        first = time.perf_counter() - began
        for _ in range(args.batches):
            started = now()
            method(given)
            seconds.append(now() - started)
    found = {"method": case, "precision": precision, "compile": compile}
    return {**found, "milliseconds": 1e3 * median(seconds), "first_two_batches_seconds": first}


def engine(args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per batch of a stream through the Trainer and its monitor, and of the method alone."""
    method, data = ours("source", network(args, NUM_CLASSES), args), toy_data(batch_size=8)
    monitor = AdaptationMonitor()
    trainer = L.Trainer(
        accelerator="auto", devices=1, inference_mode=False, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[monitor],
    )  # fmt: skip
    trainer.test(method, datamodule=data, verbose=False)
    started = now()
    trainer.test(method, datamodule=data, verbose=False)
    stream = now() - started
    method.to(device())
    batches = [batch.images for batch in data.test_dataloader()]
    started = now()
    for batch in batches:
        method(batch)
    alone = now() - started
    per_batch = {"stream": 1e3 * stream / len(batches), "method": 1e3 * alone / len(batches)}
    return {**per_batch, "share": 1 - alone / stream}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(CASES), default=METHODS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--compile", nargs="+", default=["off", "default"], help="values of model.compile")
    parser.add_argument("--seconds", type=float, default=270, help="no case begins later")
    add_arguments(parser, batch_size=64)
    args, began = parser.parse_args(), time.monotonic()
    torch.set_num_threads(args.threads)
    on_gpu = torch.cuda.is_available()
    vit, cases, missing = network(args).to(device()), [], []
    shares = {"engine_milliseconds": engine(args)}
    for compile in args.compile:  # eager passes of everything come before what takes a minute to compile
        for precision in args.precisions:
            for case in args.methods:
                if time.monotonic() - began > args.seconds:
                    missing.append(f"{case}, {precision}, compile={compile}")
                    continue
                cases.append(milliseconds(case, precision, compile, vit, args))
                print(cases[-1], file=sys.stderr, flush=True)
    facts = {
        "device": torch.cuda.get_device_name() if on_gpu else f"cpu ({args.threads} threads), CPU time",
        "torch": torch.__version__,
        **{key: getattr(args, key) for key in ("model", "size", "depth", "batch_size", "batches", "steps_new")},
    }
    print(json.dumps({**facts, "cases": cases, **shares, "not_measured": missing}, indent=1))


if __name__ == "__main__":
    main()
