"""The commands about the source side: source models, and what methods learn of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_bench.cli.terminal import Words, console, one_sentence

source_app = typer.Typer(
    no_args_is_help=True, help="The source side: train a source model, or what a method needs of it."
)


@source_app.command("train")
def source_train(
    output: Annotated[Path, typer.Option(help="Where the weights go; a .yaml with the facts lies beside them")],
    words: Words = None,
    images: Annotated[
        str | None,
        typer.Option(help="Fine-tune on these: class folders, CIFAR's binary version, a .npz file, or a .npy file"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="What is fine-tuned: a timm model by its full tag")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Local weights of that model")] = None,
    config: Annotated[str | None, typer.Option(help="A description of a model, with --checkpoint")] = None,
    labels: Annotated[str | None, typer.Option(help="The labels of a .npy file")] = None,
    split: Annotated[str, typer.Option(help="Which part of a .npz file, or of CIFAR")] = "train",
    classes: Annotated[
        str | None, typer.Option(help="What gives class folders their labels, as dataset.classes")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Cut images of folders to this square")] = None,
    seed: int = 0,
    epochs: int = 8,
    num_images: Annotated[
        int | None, typer.Option(help="Of shapes_c, 40000 by default, and of streets_c, 2400")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="1e-4 for fine-tuning by default, and more from scratch")] = None,
    batch_size: Annotated[int | None, typer.Option(help="128 by default, and 8 for segmentation")] = None,
    num_workers: Annotated[int, typer.Option(help="Processes that decode images")] = 0,
    wandb: Annotated[bool, typer.Option(help="Also log to Weights & Biases")] = False,
) -> None:
    """Fine-tune a timm model on your images; without --images, train the source model of shapes_c from scratch.

    With dataset=..., train a SegFormer from scratch on the source domain of a data set for segmentation.

    One image in ten is held out for validation. The same command goes on fine-tuning after the last finished epoch.

    Examples:
        tta-bench source train --output vit-cifar10.safetensors --images cifar-10-batches-bin
        --model vit_tiny_patch16_224.augreg_in21k_ft_in1k --checkpoint vit_tiny.npz --wandb

        tta-bench source train --output shapes_vit.safetensors

        tta-bench source train dataset=segmentation_folder dataset.images=camvid/images dataset.labels=camvid/labels
        dataset.classes=camvid/label_colors.txt dataset.source_domain=day --output segformer.safetensors --epochs 40
    """
    with one_sentence():
        fine_tuning = {
            "--images": images, "--model": model, "--checkpoint": checkpoint, "--config": config, "--labels": labels,
            "--classes": classes, "--image-size": image_size, "--num-workers": num_workers, "--wandb": wandb,
        }  # fmt: skip
        given = [option for option, value in fine_tuning.items() if value]
        if words:
            if given:
                raise ValueError(f"dataset=... trains a SegFormer from scratch, without {', '.join(given)}")
            from tta_bench.training.segmenter import train_on_source_domain

            train_on_source_domain(
                words, output, seed=seed, epochs=epochs, num_images=num_images, lr=lr, batch_size=batch_size,
                console=console,
            )  # fmt: skip
            return
        if images is None:
            if given or batch_size:
                unused = [*given, *(["--batch-size"] if batch_size else [])]
                raise ValueError(f"{', '.join(unused)} is for fine-tuning on images of yours: give --images, too")
            _train_shapes_vit(output, seed, epochs, num_images, lr)
            return
        if num_images is not None:
            raise ValueError("--num-images is for shapes_c: of --images, all are used")
        if model is None and config is None:
            raise ValueError("say what is fine-tuned: --model with its full timm tag, or --config with --checkpoint")
        from tta_bench.training.fine_tune import FineTuneRecipe, fine_tune

        recipe = FineTuneRecipe(
            images, labels, split, classes, image_size, model, checkpoint, config, seed, epochs,
            1e-4 if lr is None else lr, batch_size or 128,
        )  # fmt: skip
        fine_tune(recipe, output, console, num_workers=num_workers, wandb=wandb)


def _train_shapes_vit(output: Path, seed: int, epochs: int, num_images: int | None, lr: float | None) -> None:
    from tta_bench.training.classifier import train_shapes_vit

    train_shapes_vit(
        output, seed=seed, epochs=epochs, num_images=num_images or 40_000, lr=1.5e-3 if lr is None else lr,
        console=console,
    )  # fmt: skip


@source_app.command("warmup")
def source_warmup(words: Words = None) -> None:
    """Train what a method adds to the source model on labeled source images, and keep it for later runs.

    A run does this by itself when the cache lacks it.

    Example:
        tta-bench source warmup method=vida method.warmup_steps=500
    """
    _prepare_source(words)


@source_app.command("stats")
def source_stats(words: Words = None) -> None:
    """Measure what a method needs of the source images (statistics, Fisher information), and keep it.

    A run does this by itself when the cache lacks it.

    Example:
        tta-bench source stats method=eata dataset=corrupted dataset.images=images/
    """
    _prepare_source(words)


def _prepare_source(words: list[str] | None) -> None:
    with one_sentence():
        from tta_bench.config.compose import compose_run
        from tta_bench.experiments.run import Run

        run = Run(compose_run(words or []))
        facts, file = run.prepare_source(console)
    done = "was there already" if facts["source_cached"] else f"took {facts['source_seconds']:.1f} s"
    images = f"{facts['source_forward_samples']} images forward, {facts['source_backward_samples']} backward"
    console.print(f"{run.choices['method']}: {done} ({images}); {file}", highlight=False, soft_wrap=True)
