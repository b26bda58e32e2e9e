"""The command line. Torch is imported only by the commands that need it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tta_bench import __version__
from tta_bench.cli.config import config_app
from tta_bench.cli.data import data_app
from tta_bench.cli.finished import print_tables, report, verify
from tta_bench.cli.listing import list_options
from tta_bench.cli.source import source_app
from tta_bench.cli.stream import stream_app
from tta_bench.cli.terminal import Program, Words, complain, console, loading
from tta_bench.cli.terminal import one_sentence as _one_sentence
from tta_bench.console import say
from tta_bench.ranks import is_worker

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Benchmark continual test-time adaptation: methods side by side on the same stream.",
)
app.add_typer(stream_app, name="stream")
app.add_typer(source_app, name="source")
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")
app.command("list")(list_options)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tta-bench {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Options of the program itself; its help is in ``app``."""


@app.command()
def bench(
    words: Words = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs with their estimated costs")] = False,
) -> None:
    """Run several methods on the same stream and compare them.

    `shard=3/16` runs the third of sixteen parts, which take about equally long.

    For example:

    - `tta-bench bench setting=cdc`
    - `tta-bench bench setting=csc 'methods=[source,tent,dpcore]' 'seeds=[0,1,2]' tent.lr=0.001`
    - `tta-bench bench dataset=corrupted dataset.images=images/ model=local model.checkpoint=w.safetensors
      model.config=w.yaml`
    """
    with _one_sentence():
        with loading():
            from tta_bench.experiments.bench import bench as run_bench
            from tta_bench.experiments.bench import make_plan
            from tta_bench.experiments.costs import jobs_table
            from tta_bench.report.recommendation import recommendations
        if dry_run:
            console.print(jobs_table(make_plan(words or []).jobs()))
            return
        results = run_bench(words or [], console)
        if results:
            print_tables(results)
            for sentence in recommendations(results):
                say(console, sentence)
            _tell_offline(results)
    if any(result["status"] != "done" for result in results):
        raise typer.Exit(1)


@app.command()
def run(
    words: Words = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Repeat the run in this folder from its files alone")
    ] = None,
) -> None:
    """Run one method on one stream.

    For example:

    - `tta-bench run method=dpcore setting=cdc seed=0`
    - `tta-bench run method=tent method.lr=0.001 setting=repeating setting.rounds=3 logger=off`
    - `tta-bench run --from runs/shapes_c/cdc/tent/seed0-1a2b3c4d output=repeated`
    """
    with _one_sentence():
        with loading():
            from tta_bench.config.compose import compose_run
            from tta_bench.experiments.run import Run
            from tta_bench.experiments.verify import repeat
        if from_ is not None:
            key, _, output = (words or ["output=runs"])[0].partition("=")
            if key != "output" or not output or len(words or []) > 1:
                raise ValueError("--from accepts only output=FOLDER: everything else comes from the run's own files")
            job = repeat(from_, output)
        else:
            job = Run(compose_run(words or []))
        console.quiet = is_worker(job.config.trainer.devices)
        result = job.execute(console)
        if not console.quiet:
            print_tables([result])
            _tell_offline([result])
    if result["status"] != "done":
        complain("failed", str(result["error"]))
        raise typer.Exit(1)


@app.command()
def predict(words: Words = None) -> None:
    """Predict images with the adapted model of a run, without labels.

    The run must have been started with `save_adapted=last`. `images=` is a folder or a table with a column `path`;
    `adapt=true` lets the model learn from these images too, in their order.

    For example:

    - `tta-bench predict run=runs/manifest/as_given/tent/seed0-1a2b3c4d images=new/ output=predictions.csv`
    """
    with _one_sentence():
        with loading():
            from tta_bench.config.words import read_words
            from tta_bench.experiments.adapted import predict as predict_images
        given = {word.key: word.value for word in read_words(words or [])}
        known = ("run", "images", "output", "adapt", "batch_size")
        for key in given:
            if key not in known:
                raise ValueError(f"predict takes no {key!r}: its words are {', '.join(known)}")
        if "run" not in given or "images" not in given:
            raise ValueError("predict needs run=FOLDER of a run with save_adapted=last, and images=FOLDER or TABLE")
        adapt, size, output = given.get("adapt", False), given.get("batch_size", 64), given.get("output")
        if not isinstance(adapt, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"adapt is true or false and batch_size a number of images; got {adapt!r} and {size!r}")
        file = Path(str(output or "predictions.csv"))
        places = Path(str(given["run"])), Path(str(given["images"])), file
        count = predict_images(*places, adapt=adapt, batch_size=size, console=console)
        console.print(f"{count} images in {file}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="A table or figure of the DPCore paper")],
    words: Words = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands of the runs")] = False,
) -> None:
    """Reproduce a table or figure of the paper and show our numbers next to the published ones.

    Runs that are already finished are not repeated.

    For example:

    - `tta-bench reproduce list`
    - `tta-bench reproduce components dataset=shapes_c`
    - `tta-bench reproduce imagenetc_csc dataset.root=imagenet-c dataset.source_images=imagenet/train
      'methods=[source,tent,dpcore]' 'seeds=[0,1,2]' dpcore.rho=0.9`
    """
    with _one_sentence():
        if name == "list":
            from tta_bench.paper.tables import tables_list

            console.print(tables_list())
            return
        with loading():
            from tta_bench.paper.report import print_report, write_report
            from tta_bench.paper.reproduce import distinct, make_plan
            from tta_bench.paper.reproduce import reproduce as run_table
        plan = make_plan(name, words or [])
        if dry_run:
            from tta_bench.experiments.costs import share

            for job in share(list(distinct(plan.composed().values()).values()), plan.launch.shard):
                typer.echo(shlex.join(["tta-bench", "run", *map(str, job.words)]))
            return
        done = run_table(plan, console)
        if done is None:
            return
        print_report(done, console)
        files = write_report(done)
        say(console, f"Also written to {', '.join(files)}")
    if done.failures:
        raise typer.Exit(1)


@app.command()
def tune(
    words: Words = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="Values to try, e.g. lr=[0.001,0.01],rho=[0.6,0.8]; may be repeated")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the best values; by default in config_dir, else in the current folder"),
    ] = None,
) -> None:
    """Tune a method's hyper-parameters on the four validation corruptions and save the best values.

    Without a grid, learning rates around the published one are tried. Finished runs are not repeated.

    For example:

    - `tta-bench tune method=tent`
    - `tta-bench tune method=dpcore setting=csc 'seeds=[0,1]' --grid 'lr=[0.01,0.1],rho=[0.8,0.95]'`
    - `tta-bench tune method=sar dataset=imagenet_c dataset.root=imagenet-c model=vit_b16_raw config_dir=mine`
    """
    with _one_sentence():
        with loading():
            from tta_bench.experiments.tune import make_tuning, tuning_table, write_tuned
            from tta_bench.experiments.tune import tune as run_grid
        done = run_grid(make_tuning(words or [], grid or []), console)
        if done is None:
            return
        console.print(tuning_table(done))
        say(console, write_tuned(done, output))


app.command()(report)
app.command()(verify)


@app.command()
def doctor(
    words: Words = None,
    images: Annotated[int, typer.Option(help="Number of images that the source model predicts")] = 300,
) -> None:
    """Check data, model, memory, disk and W&B before a long run.

    The exit status is 1 if there is a problem.

    For example:

    - `tta-bench doctor dataset=imagenet_c dataset.root=/data/ImageNet-C model=vit_b16_raw 'methods=[source,tent]'`
    - `tta-bench doctor dataset=corrupted dataset.images=images/ model=local model.checkpoint=w.pth model.config=w.yaml`
    """
    with _one_sentence():
        with loading():
            from tta_bench.experiments.doctor import checks_table
            from tta_bench.experiments.doctor import doctor as examine
        checks = examine(words or [], console, images)
    console.print(checks_table(checks))
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(1)


def _tell_offline(results: list[dict[str, object]]) -> None:
    """Say how to upload the files that W&B stored offline, if there are any."""
    from tta_bench.loggers.wandb_offline import sync_command

    if command := sync_command([Path(str(result["folder"])) for result in results if "folder" in result]):
        say(console, f"W&B was offline. To upload: wandb login, then {command}", "dim")
