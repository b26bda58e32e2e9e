"""What prompts and norm layers recover of the validation corruptions, with and without labels.

    python -m benchmarks.prompt_capacity dataset=scenes_c
    python -m benchmarks.prompt_capacity dataset=shapes_c method.prompt_length=2 --steps 25

DPCore learns a prompt from the statistics of one batch. Where that gains little, the table tells the reasons apart:
one batch is too small (compare 64 with 512 images), statistics do not say enough (compare with labels), or prompt
tokens cannot do it (compare with norms). Errors are of 512 other images of the domain.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tta_bench.config.compose import compose_run
from tta_bench.config.words import read_words
from tta_bench.experiments.run import Run
from tta_bench.functional import batch_statistics
from tta_bench.methods import DPCore
from tta_bench.types import SourceNeed

BATCH, LEARNED, TESTED = 64, 512, 512


def images_of(run: Run, domain: str, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Prepared images (N, C, H, W) and labels (N,) of a domain."""
    pixels = np.stack([run.domains.load(domain, row) for row in range(first, first + count)])
    labels = torch.as_tensor(run.domains.labels(domain)[first : first + count])
    return run.backbone.prepare(torch.from_numpy(pixels).permute(0, 3, 1, 2)), labels


def learn(method: DPCore, images: Tensor, labels: Tensor | None, steps: int) -> None:
    """Learn a prompt from scratch in steps of 64 images, from their statistics or from their labels."""
    method.space.load(method.initial_prompt)
    method.restart_optimizer()
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randperm(len(images), generator=generator)[:BATCH]
        encoded = method.space.prompted(method.backbone, method.space.embed(method.backbone, images[rows]))
        if labels is None:
            method.update(method.source.distance(batch_statistics(method.backbone.features_of(encoded))))
        else:
            method.update(cross_entropy(method.backbone.classify(encoded), labels[rows]))


@torch.no_grad()
def error_and_distance(method: DPCore, images: Tensor, labels: Tensor, prompted: bool) -> tuple[float, float]:
    """Error in percent, and the distance of the statistics to the source."""
    encode = method.space.prompted if prompted else method.space.raw
    encoded = encode(method.backbone, method.space.embed(method.backbone, images))
    wrong = method.backbone.classify(encoded).argmax(dim=1) != labels
    return 100 * float(wrong.double().mean()), float(
        method.source.distance(batch_statistics(method.backbone.features_of(encoded)))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="overrides, e.g. dataset=scenes_c method.prompt_length=2")
    parser.add_argument("--steps", type=int, default=50, help="steps of 64 images")
    asked = parser.parse_args()
    own = ["method=dpcore", "logger=off", "dataset.domains=validation", "dataset.split=validation"]
    own.append(f"dataset.num_images={LEARNED + TESTED}")
    print("| domain | learned | from | error | distance |\n|---|---|---|---|---|")
    for space in ("tokens", "norms"):
        run = Run(compose_run(read_words([*own, f"method.prompt_space={space}", *asked.words])))
        method = run.method
        assert isinstance(method, DPCore)
        method.configure_model()
        method.fit_source(run.data.source_dataloader(SourceNeed.UNLABELED, method.least_source_images()))
        for domain in run.domains.domains:
            images, labels = images_of(run, domain, 0, LEARNED)
            test = images_of(run, domain, LEARNED, TESTED)
            if space == "tokens":
                error, distance = error_and_distance(method, *test, prompted=False)
                print(f"| {domain} | nothing | | {error:.1f} | {distance:.2f} |", flush=True)
            for source, known, number in (("statistics", None, BATCH), ("statistics", None, LEARNED),
                                          ("labels", labels, LEARNED)):  # fmt: skip
                learn(method, images[:number], known, asked.steps)
                error, distance = error_and_distance(method, *test, prompted=True)
                told = f"{source} of {number} images"
                print(f"| {domain} | {space} | {told} | {error:.1f} | {distance:.2f} |", flush=True)


if __name__ == "__main__":
    main()
