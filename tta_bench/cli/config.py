"""Commands for configurations."""

from __future__ import annotations

import typer

from tta_bench.cli.terminal import Words, loading, one_sentence

config_app = typer.Typer(no_args_is_help=True, help="Look at the composed configuration of a run or a bench.")


@config_app.command("show")
def config_show(words: Words = None) -> None:
    """Print the composed configuration as YAML and run nothing.

    With `methods=` or `seeds=`, print that of every run of a bench.

    For example:

    - `tta-bench config show method=tent setting=csc`
    - `tta-bench config show 'methods=[source,tent]' 'seeds=[0,1]' tent.lr=0.001`
    """
    with one_sentence():
        with loading():
            from omegaconf import OmegaConf

            from tta_bench.config.compose import compose_run
            from tta_bench.config.words import read_words
            from tta_bench.experiments.bench import make_plan
        given = read_words(words or [])
        several = any(word.key in ("methods", "seeds") for word in given)
        documents = []
        for job in make_plan(given).jobs() if several else [compose_run(given)]:
            head = f"# {' '.join(map(str, job.words))}\n" if several else ""
            documents.append(head + OmegaConf.to_yaml(job.config))
        typer.echo("---\n".join(documents), nl=False)
