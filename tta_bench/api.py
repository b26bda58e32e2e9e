"""The Python API, with the same names, values and numbers as the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.console import Console

from tta_bench.config.compose import compose_run, options
from tta_bench.config.registry import config_folder, register_all, register_light
from tta_bench.config.user_folder import user_folder
from tta_bench.config.words import ConfigError, Override, word_for
from tta_bench.report.runs import RunRecord

if TYPE_CHECKING:
    from tta_bench.methods.base import TTAMethod
    from tta_bench.models.backbones.base import Backbone


class Runs(list[RunRecord]):
    """Records of runs, in the order in which they ran."""

    def to_pandas(self) -> Any:
        """Convert to a ``pandas.DataFrame`` with one row per run; columns are the dotted keys of ``result.json``.

        Raises:
            ImportError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas() requires the package pandas: pip install pandas") from None
        return pandas.json_normalize([run.result for run in self])


def list_methods() -> list[str]:
    """Names of the methods, including variants that are configurations of one, for ``create_method``.

    Example:
        >>> "dpcore" in list_methods() and "dpcore_official" in list_methods()
        True
    """
    register_all()
    return options("method")


def list_settings() -> list[str]:
    """Names of the kinds of streams, for ``make_stream`` and the classes in ``tta_bench.data``.

    Example:
        >>> "cdc" in list_settings()
        True
    """
    register_light()
    return options("setting")


def list_datasets() -> list[str]:
    """Names of the data sets, for ``run`` and ``bench``; ``tta_bench.data`` has a class for each.

    Example:
        >>> "shapes_c" in list_datasets()
        True
    """
    register_light()
    return options("dataset")


def list_models() -> list[str]:
    """Names of the source models, for ``run`` and ``bench``.

    Example:
        >>> "shapes_vit" in list_models()
        True
    """
    register_all()
    return options("model")


def create_method(
    name: str, backbone: Backbone, *, tuned: str | None = None, seed: int = 0, **settings: Any
) -> TTAMethod:
    """Build a method around a source model, on the device of the model, as on the command line.

    Args:
        name: A name in ``list_methods()``, or the import path of your own class, ``package.module.Class``.
        backbone: The source model; the method changes it in place.
        tuned: A data set whose tuned values are used unless overridden in ``settings``; the command line uses those
            of its data set automatically. None uses the published values.
        seed: Seed of the method's random draws.
        settings: The method's keyword arguments.

    Returns:
        The method. If it needs source data, call ``method.fit_source(loader)`` next.

    Raises:
        ValueError: If the method or an argument is unknown, nothing was tuned for the data set, or the method cannot
            adapt this model.

    Example:
        >>> import tta_bench as tta
        >>> method = tta.create_method("tent", tta.load_model("shapes_vit"), lr=1e-3)
    """
    from tta_bench.experiments.run import build_method

    if tuned is not None:
        tuned_values(tuned, name)
    chosen = ["tuned=off"] if tuned is None else [f"dataset={tuned}"]
    words: list[str | Override] = [f"method={name}", *chosen]
    words += [word_for(f"method.{key}", value) for key, value in settings.items()]
    method = build_method(compose_run(words).config.method, backbone, seed)
    method.to(next(backbone.parameters()).device)
    method.configure_model()
    return method


def tuned_values(dataset: str, method: str) -> dict[str, Any]:
    """Values tuned for a method on a data set, which the command line uses for this data set.

    Your own folder, set by the environment variable ``TTA_BENCH_CONFIG_DIR``, takes precedence over the package's.

    Args:
        dataset: A name in ``list_datasets()``.
        method: A name in ``list_methods()``.

    Returns:
        Keyword arguments of the method: ``{"lr": 0.001, ...}``.

    Raises:
        ValueError: If there are none; the message lists those that exist.

    Example:
        >>> tuned_values("cifar10_c", "vida")["optimizer"]
        'adam'
    """
    folders = [folder / "tuned" for folder in (user_folder(()), config_folder()) if folder]
    for folder in folders:
        if (file := folder / dataset / f"{method}.yaml").is_file():
            return dict(OmegaConf.load(file).method)
    of_dataset = sorted({path.stem for folder in folders for path in (folder / dataset).glob("*.yaml")})
    datasets = sorted({path.parent.name for folder in folders for path in folder.glob("*/*.yaml")})
    known, told = (of_dataset, "there are values for") if of_dataset else (datasets, "there are values on")
    raise ConfigError(f"nothing was tuned for {method} on {dataset}; {told}: {', '.join(known)}")


def run(*words: str, quiet: bool = False, **values: Any) -> RunRecord:
    """Run one method on one stream, with the same numbers and the same run folder as ``tta-bench run``.

    Args:
        words: Overrides as on the command line, such as ``"method.lr=0.001"``.
        quiet: Whether to print nothing.
        values: The same as keywords, such as ``method="tent"``; dotted keys as ``**{"method.lr": 0.001}``. A method may
            also be an importable class.

    Returns:
        The record of the run, read from its folder if it was finished before.

    Raises:
        ValueError: If an override is wrong; this is checked before the run.
        RuntimeError: If the run failed; its files remain in its folder.

    Example:
        >>> import tta_bench as tta
        >>> record = tta.run("dataset.num_images=64", method="tent", setting="csc", logger="off")  # doctest: +SKIP
        >>> record.mean_error  # doctest: +SKIP
        45.2
    """
    from tta_bench.experiments.launchers.worker import execute
    from tta_bench.experiments.run import Run

    job = Run(compose_run(_words(words, values)))
    result = execute(job, Console(quiet=quiet))
    if result["status"] != "done":
        raise RuntimeError(f"{job.title} failed: {result['error']}; its files are in {result['folder']}")
    return RunRecord(result)


def bench(*words: str, quiet: bool = False, **values: Any) -> Runs:
    """Run several methods on the same stream, with the same numbers and run folders as ``tta-bench bench``.

    Args:
        words: Overrides as on the command line, such as ``"tent.lr=0.001"``.
        quiet: Whether to print nothing.
        values: The same as keywords, such as ``methods=["source", "tent"], seeds=[0, 1]``.

    Returns:
        One record per run. A failed run does not stop the others; its ``done`` is false and ``error`` says why.

    Raises:
        ValueError: If an override is wrong; this is checked before the first run.

    Example:
        >>> import tta_bench as tta
        >>> runs = tta.bench(methods=["source", "tent"], setting="csc", logger="off")  # doctest: +SKIP
        >>> runs.to_pandas()[["method", "mean_error"]]  # doctest: +SKIP
    """
    from tta_bench.experiments.bench import bench as run_all

    return Runs(map(RunRecord, run_all(_words(words, values), Console(quiet=quiet))))


def _words(words: tuple[str, ...], values: Mapping[str, Any]) -> list[str | Override]:
    return [*words, *(word_for(key, value) for key, value in values.items())]
