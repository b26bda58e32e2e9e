"""Commands that read finished runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tta_bench.cli.terminal import console, errors, loading, one_sentence
from tta_bench.console import counted, say


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Run folders, or folders above them")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="terminal, markdown, latex, csv or html; by default the extension of --output"),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal")] = None,
    baseline: Annotated[str, typer.Option(help="Method (or column) that gains are relative to")] = "source",
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also draw figures for papers, as PDF, SVG and PNG")
    ] = None,
    deviations: Annotated[
        bool, typer.Option("--deviations", help="LaTeX: standard deviations in all cells, not only of the mean")
    ] = False,
    from_wandb: Annotated[
        str | None,
        typer.Option(metavar="ENTITY/PROJECT", help="Also report on the runs of this W&B project"),
    ] = None,
    to_wandb: Annotated[
        str | None, typer.Option(metavar="ENTITY/PROJECT", help="Also upload the finished runs to this W&B project")
    ] = None,
) -> None:
    """Compare finished runs, using only the files in their folders.

    For example:

    - `tta-bench report runs/shapes_c/cdc`
    - `tta-bench report runs --output report.html --baseline tent`
    - `tta-bench report runs --output tables.tex --figures figures`
    - `tta-bench report --from-wandb me/tta_bench --output report.html`
    """
    with one_sentence():
        from tta_bench.files import writing
        from tta_bench.report import comparison_tables, format_of, report_figures, report_text
        from tta_bench.results.run_folder import read_results

        form = form or (format_of(output) if output else "terminal")
        folders = folders or []
        if from_wandb:
            from tta_bench.loggers.wandb_transfer import from_wandb as fetch

            folders = [*folders, *fetch(from_wandb, errors)]
        if not folders:
            raise ValueError("no runs were given: name their folders, or use --from-wandb ENTITY/PROJECT")
        results = read_results(folders)
        if to_wandb:
            from tta_bench.loggers.wandb_transfer import to_wandb as give

            give(folders, to_wandb, baseline, errors)
        if figures:
            for told in report_figures(results, figures, baseline):
                say(errors, told, "dim")
            say(errors, f"Figures in {figures}")
        if output is None and form == "terminal" and not deviations:
            print_tables(results, comparison_tables(results, baseline))
            return
        text = report_text(results, form, baseline, output.parent if output else None, deviations)
        if output is None:
            sys.stdout.write(text)  # typer.echo mistrusts an ASCII terminal and writes UTF-8
            return
        with writing(output):
            output.write_text(text, encoding="utf-8")
        say(console, f"{counted(len(results), 'run')} in {output}")


def verify(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders above them")],
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Run them again and compare the results batch by batch")
    ] = False,
    batches: Annotated[int | None, typer.Option(min=1, help="With --rerun, only this many batches")] = None,
) -> None:
    """Verify results: files, numbers, stream, weights, data and code.

    The exit status is 1 if there is a problem.

    For example:

    - `tta-bench verify runs/shapes_c/cdc`
    - `tta-bench verify runs/shapes_c/cdc/tent --rerun --batches 10`
    """
    with one_sentence():
        with loading():
            from tta_bench.experiments.verify import verify as examine
            from tta_bench.results.run_folder import read_results
        if batches is not None and not rerun:
            raise ValueError("--batches limits --rerun: use both, or neither")
        wrong = 0
        for result in read_results(folders):
            say(console, str(result["folder"]), "bold")
            for check in examine(result, rerun=rerun, batches=batches):
                wrong += check.state == "problem"
                colour = {"ok": "green", "note": "yellow", "problem": "bold red"}[check.state]
                line = Text.assemble("  ", (f"{check.state:<8}", colour), f"{check.name:<15} {check.found}")
                say(console, line)
    if wrong:
        raise typer.Exit(1)


def print_tables(results: list[dict[str, object]], tables: Sequence[RenderableType] = ()) -> None:
    """Print the comparison of results, or tables made before, and where the runs are."""
    from tta_bench.report import comparison_tables

    for table in tables or comparison_tables(results):
        console.print(table)
    folders = [Path(str(result["folder"])) for result in results if "folder" in result]
    say(
        console,
        f"{counted(len(folders), 'run')} in {', '.join(sorted({str(folder.parents[1]) for folder in folders}))}",
    )
