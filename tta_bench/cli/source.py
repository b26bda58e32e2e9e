"""Commands for the source domain: train source models, and prepare what methods need from the source."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tta_bench.cli.terminal import Words, console, one_sentence
from tta_bench.console import say

source_app = typer.Typer(
    no_args_is_help=True, help="Train a source model, or prepare what a method needs from the source domain."
)


Output = Annotated[
    Path, typer.Option(help="File for the weights (.safetensors); a .yaml that describes them is written next to it")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of initial weights, order and augmentation")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the training images")]


class Embedded(StrEnum):
    """The source models that come with the package."""

    SCENES_VIT = "scenes_vit"
    SHAPES_VIT = "shapes_vit"


@source_app.command("train")
def source_train(
    model: Annotated[Embedded, typer.Argument(help="scenes_vit, of scenes_c, or shapes_vit, of shapes_c")],
    output: Output,
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Parts of the training: 28, or 8 for shapes_vit")] = None,
    num_images: Annotated[
        int | None, typer.Option(min=1, help="Training images per epoch: 16000, or 40000 for shapes_vit")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate: 0.02, or 1.5e-3 for shapes_vit")] = None,
) -> None:
    """Train a source model of the package from scratch, on clean images only.

    After an interruption, the same command resumes after the last finished epoch.

    For example:

    - `tta-bench source train scenes_vit --output scenes_vit.safetensors`
    """
    options = {"seed": seed, "epochs": epochs, "num_images": num_images, "lr": lr}
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    with one_sentence():
        if model is Embedded.SHAPES_VIT:
            from tta_bench.training.classifier import train_shapes_vit

            train_shapes_vit(output, console=console, **given)
        else:
            from tta_bench.training.scenes_vit import train_scenes_vit

            train_scenes_vit(output, console=console, **given)


@source_app.command("fine-tune")
def source_fine_tune(
    output: Output,
    images: Annotated[str, typer.Option(help="Class folders, CIFAR's binary version, a .npz file, or a .npy file")],
    model: Annotated[str | None, typer.Option(help="A timm model by its full tag")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Local weights of that model")] = None,
    checkpoint_key: Annotated[
        str | None, typer.Option(help="State dict to load from --checkpoint, as model.checkpoint_key")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A yaml that describes a model, with --checkpoint")] = None,
    labels: Annotated[str | None, typer.Option(help="Labels for a .npy file of images")] = None,
    split: Annotated[str, typer.Option(help="Split of a .npz file or of CIFAR")] = "train",
    classes: Annotated[str | None, typer.Option(help="How class folders are labelled, as in dataset.classes")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Crop images from folders to this square")] = None,
    seed: Seed = 0,
    epochs: Epochs = 8,
    lr: Annotated[float, typer.Option(help="Peak learning rate")] = 1e-4,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step")] = 128,
    num_workers: Annotated[int, typer.Option(min=0, help="Processes that decode images")] = 0,
    wandb: Annotated[bool, typer.Option(help="Also log to Weights & Biases")] = False,
) -> None:
    """Fine-tune a timm model on your own images: a source model for CIFAR, or for your data.

    One image in ten is held out for validation. After an interruption, the same command resumes after the last
    finished epoch.

    For example:

    - `tta-bench source fine-tune --output vit-cifar10.safetensors --images cifar-10-batches-bin
      --model vit_tiny_patch16_224.augreg_in21k_ft_in1k --checkpoint vit_tiny.npz --wandb`
    """
    with one_sentence():
        if model is None and config is None:
            raise ValueError("no model was given: use --model with a full timm tag, or --config with --checkpoint")
        from tta_bench.training.fine_tune import FineTuneRecipe, fine_tune

        recipe = FineTuneRecipe(
            images,
            labels,
            split,
            classes,
            image_size,
            model,
            checkpoint,
            checkpoint_key,
            config,
            seed,
            epochs,
            lr,
            batch_size,
        )
        fine_tune(recipe, output, console, num_workers=num_workers, wandb=wandb)


@source_app.command("train-segmenter")
def source_train_segmenter(
    output: Output,
    words: Words = None,
    seed: Seed = 0,
    epochs: Epochs = 8,
    num_images: Annotated[
        int | None,
        typer.Option(min=1, help="Training images, for streets_c only (default 2400); others use all"),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; 3e-3 for streets_c, 1e-3 for others")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images per step, 8 by default")] = None,
) -> None:
    """Train a SegFormer from scratch on the source domain of a data set with a class per pixel.

    One image in ten is held out for validation. After an interruption, the same command resumes after the last
    finished epoch.

    For example:

    - `tta-bench source train-segmenter dataset=streets_c --output streets_segformer.safetensors`
    - `tta-bench source train-segmenter dataset=segmentation_folder dataset.images=camvid/images
      dataset.labels=camvid/labels dataset.classes=camvid/label_colors.txt dataset.source_domain=day
      --output segformer.safetensors --epochs 40`
    """
    with one_sentence():
        if not any(word.startswith("dataset=") for word in words or []):
            raise ValueError("no data set was given: use, for example, dataset=streets_c")
        from tta_bench.training.segmenter import train_on_source_domain

        train_on_source_domain(
            words or [], output, seed=seed, epochs=epochs, num_images=num_images, lr=lr, batch_size=batch_size,
            console=console,
        )  # fmt: skip


@source_app.command("warmup")
def source_warmup(words: Words = None) -> None:
    """Train the parameters that a method adds to the source model, and cache them for later runs.

    It uses labeled source images. A run does this automatically if the cache has no entry.

    For example:

    - `tta-bench source warmup method=vida method.warmup_steps=500`
    """
    _prepare_source(words)


@source_app.command("stats")
def source_stats(words: Words = None) -> None:
    """Compute what a method needs from source images (statistics, Fisher information), and cache it.

    A run does this automatically if the cache has no entry.

    For example:

    - `tta-bench source stats method=eata dataset=corrupted dataset.images=images/`
    """
    _prepare_source(words)


def _prepare_source(words: list[str] | None) -> None:
    with one_sentence():
        from tta_bench.config.compose import compose_run
        from tta_bench.experiments.run import Run

        run = Run(compose_run(words or []))
        facts, file = run.prepare_source(console)
    done = "already cached" if facts["source_cached"] else f"took {facts['source_seconds']:.1f} s"
    images = f"{facts['source_forward_samples']} images forward, {facts['source_backward_samples']} backward"
    say(console, f"{run.choices['method']}: {done} ({images}); {file}")
