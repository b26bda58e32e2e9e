"""Errors and decisions in half precision against float32, on ``shapes_c``: writes docs/precision.md.

    python -m benchmarks.precision > docs/precision.md
    python -m benchmarks.precision source tent --images 16

On a CPU, Lightning refuses ``16-mixed``, so its plugin is passed to the Trainer.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.plugins import MixedPrecision

import tta_bench as tta
from tta_bench.types import StepOutput, StreamBatch

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
DOMAINS = ["gaussian_noise", "defocus_blur", "fog", "jpeg_compression"]
# Without those that need batch norm, are episodic, or warm up for thousands of steps.
METHODS = (
    "source", "tent", "dpcore", "bdg", "cmae", "cmf", "cotta", "deyo", "eata", "eta", "foa", "lame", "note_pbrs",
    "petta", "pseudo_label", "rdumb", "roid", "rotta", "rpl", "santa", "sar",
)  # fmt: skip


class Decisions(L.Callback):
    """Keeps the predicted and the true classes of a stream."""

    def __init__(self) -> None:
        self.predicted: list[torch.Tensor] = []
        self.labels: list[torch.Tensor] = []

    def on_test_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: StepOutput, batch: StreamBatch, *_: Any
    ) -> None:
        """Keep the batch."""
        self.predicted.append(outputs.scores.argmax(dim=1).cpu())
        self.labels.append(batch.labels.cpu())


def decisions(name: str, precision: str, images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Predicted and true classes (N,) of a method with its published values."""
    scaled = precision == "16-mixed" and not torch.cuda.is_available()
    plugin = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))] if scaled else None
    keep = Decisions()
    trainer = L.Trainer(
        precision=None if scaled else precision, plugins=plugin, devices=1, inference_mode=False, callbacks=[keep],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    method = tta.create_method(name, tta.load_model("shapes_vit"))
    data = tta.data.ShapesC("csc", domains=DOMAINS, num_images=images, batch_size=32)
    trainer.test(method, datamodule=data, verbose=False)
    return torch.cat(keep.predicted), torch.cat(keep.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--images", type=int, default=64, help="per domain")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    print("# Precision\n\nWritten by `python -m benchmarks.precision`; do not edit.\n")
    print(
        f"Error in per cent on {asked.images} images under each of {', '.join(DOMAINS)} (`shapes_c`,\nCSC, batches of "
        "32, published values, one seed), and in parentheses the share of images that are predicted as in float32.\n"
    )
    print(f"| method | {' | '.join(PRECISIONS)} |\n|{'---|' * (1 + len(PRECISIONS))}")
    for name in asked.methods:
        cells, reference = [], None
        for precision in PRECISIONS:
            predicted, labels = decisions(name, precision, asked.images)
            reference = predicted if reference is None else reference
            error, same = 100 * (predicted != labels).float().mean(), 100 * (predicted == reference).float().mean()
            cells.append(f"{error:.1f}" if precision == "32-true" else f"{error:.1f} ({same:.1f})")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
