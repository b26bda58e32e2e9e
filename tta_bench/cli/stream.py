"""Commands for streams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_bench.cli.terminal import Words, console, one_sentence

stream_app = typer.Typer(no_args_is_help=True, help="Inspect a stream before anything runs on it.")


@stream_app.command("show")
def stream_show(
    words: Words = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the timeline to this file (.png, .pdf or .svg)")] = None,
) -> None:
    """Print the domains and the fingerprint of a stream, and plot its timeline.

    For example:

    - `tta-bench stream show setting=cdc seed=1`
    - `tta-bench stream show setting=cdc_2d setting.probabilities=R3 --plot timeline.png`
    """
    with one_sentence():
        from tta_bench.cli.show import show_stream

        show_stream(words or [], plot, console)
