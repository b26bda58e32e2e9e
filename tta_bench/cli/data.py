"""Commands for data sets: download, pack, corrupt. None of them imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_bench.cli.terminal import Words, console, one_sentence

data_app = typer.Typer(no_args_is_help=True, help="Download, pack or corrupt data sets on disk.")


@data_app.command("list")
def data_list() -> None:
    """List the public data sets that can be downloaded.

    For example:

    - `tta-bench data list`
    """
    with one_sentence():
        from tta_bench.prepare.download import downloads_table

        console.print(downloads_table())


@data_app.command("download")
def data_download(
    name: Annotated[str, typer.Argument(help="A name from tta-bench data list")],
    folder: Annotated[Path, typer.Option(help="Folder to unpack into")] = Path("data"),
) -> None:
    """Download a public data set, verify it and unpack it.

    After an interruption, the same command resumes.

    For example:

    - `tta-bench data download cifar10_c`
    - `tta-bench data download imagenet_c --folder /data`
    """
    with one_sentence():
        from tta_bench.prepare.download import download

        download(name, folder, console)


@data_app.command("pack")
def data_pack(
    output: Annotated[Path, typer.Option(help="Folder for the packed data set")],
    words: Words = None,
    with_source: Annotated[bool, typer.Option(help="Also pack the images of the source domain")] = True,
) -> None:
    """Decode a data set once and store it as plain arrays, so that runs need not decode images.

    For example:

    - `tta-bench data pack dataset=imagenet_c dataset.root=/data/ImageNet-C --output /fast/imagenet-c`
    - `tta-bench bench setting=cdc dataset=packed dataset.root=/fast/imagenet-c`
    """
    with one_sentence():
        from tta_bench.config.compose import build, compose_stream, require
        from tta_bench.prepare.pack import pack

        composed = compose_stream(words or [])
        require(composed.config)
        pack(build(composed.config.dataset), output, console, with_source=with_source)


@data_app.command("corrupt")
def data_corrupt(
    images: Annotated[
        str, typer.Option("--input", help="Class folders, CIFAR's binary version, a .npz file, or a .npy file")
    ],
    output: Annotated[str, typer.Option(help="Output folder")],
    family: Annotated[str, typer.Option(help="Constants and layout: imagenet, tiny (JPEG folders) or cifar (.npy)")],
    domains: Annotated[str, typer.Option(help="common, validation, noise, ... or fog,snow")] = "common",
    severities: Annotated[str, typer.Option(help="Which of 1 to 5")] = "1,2,3,4,5",
    labels: Annotated[str | None, typer.Option(help="Labels for a .npy file of images")] = None,
    split: Annotated[str, typer.Option(help="Split of a .npz file or of CIFAR")] = "test",
    image_size: Annotated[
        int | None,
        typer.Option(help="Crop images from folders to this square; 224 by default for family imagenet"),
    ] = None,
    frost_folder: Annotated[str | None, typer.Option(help="Published frost textures; generated if not given")] = None,
    seed: int = 0,
    processes: Annotated[int | None, typer.Option(help="Number of processes; by default one per CPU")] = None,
) -> None:
    """Write corrupted copies of clean images in the published layout.

    After an interruption, the same command resumes. The number of processes does not affect the images.

    For example:

    - `tta-bench data corrupt --input imagenet/val --output my-imagenet-c --family imagenet --severities 5`
    - `tta-bench data corrupt --input cifar-10-batches-bin --output my-cifar-10-c --family cifar`
    """
    with one_sentence():
        from tta_bench.prepare.corrupt import CorruptionRecipe, corrupt_files

        chosen = tuple(_integers(severities))
        recipe = CorruptionRecipe(
            images, output, family, domains, chosen, labels=labels, split=split, image_size=image_size,
            frost_folder=frost_folder, seed=seed,
        )  # fmt: skip
        corrupt_files(recipe, console, processes)


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--severities must be integers separated by commas, such as 1,3,5; got {text!r}") from error
