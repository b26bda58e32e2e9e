"""The rules of pyproject.toml on who imports whom hold and bite; every method and configuration file is in use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tta_bench
from tta_bench.config.compose import GROUPS, compose_run, compose_stream, options
from tta_bench.config.registry import config_folder, register_all
from tta_bench.methods import METHODS

PACKAGE = Path(tta_bench.__file__).parent
ROOT = PACKAGE.parent
CONFIGS = sorted(config_folder().rglob("*.yaml"))
METHODS_WITHOUT_ENTRY = {"__init__", "base", "source_images", "state", "warm_up"}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the rules on the package below ``folder``."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--config", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [*command, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_imports_follow_the_rules():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("methods/tent.py", "from tta_bench.data import StreamDataModule", "Methods never see"),
        ("methods/tent.py", "def f():\n    from tta_bench import streams", "Methods never see"),
        ("models/parallel.py", "import tta_bench.datasets.procedural.shapes", "Methods never see"),
        ("streams/kinds.py", "def f():\n    from torch import nn", "Streams, data sets"),
        ("datasets/corruptions/noise.py", "from tta_bench.streams import Schedule", "Layers"),
        ("loggers/wandb_run.py", "from tta_bench.experiments.run import Run", "Layers"),
        ("results/rows.py", "import tta_bench.methods", "Layers"),
    ],
)
def test_a_wrong_import_is_found(file, line, broken, tmp_path):
    copy = tmp_path / "tta_bench"
    shutil.copytree(PACKAGE, copy, ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")])
    with (copy / file).open("a") as text:
        text.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout
    found = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert found
    assert found[0].startswith(broken)


LIGHT = {
    "import": "import tta_bench.report, tta_bench.cli, tta_bench.streams, tta_bench.datasets.classification.corrupted",
    "stream": "from tta_bench.cli import app\n"
    "app(['stream', 'show', 'setting=csc', 'dataset.num_images=8'], standalone_mode=False)",
    "list": "from tta_bench.cli import app\napp(['list', 'methods'], standalone_mode=False)\n"
    "assert not {'hydra', 'omegaconf', 'numpy'} & set(sys.modules)",
}


@pytest.mark.parametrize("name", LIGHT)
def test_looking_at_streams_and_reports_leaves_torch_alone(name):
    heavy = "{'torch', 'lightning', 'timm', 'wandb', 'matplotlib'}"
    code = f"import sys\n{LIGHT[name]}\nassert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)\nprint('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("end\n")


def test_every_method_file_is_registered():
    files = {path.stem for path in PACKAGE.joinpath("methods").glob("*.py")} - METHODS_WITHOUT_ENTRY
    assert files == {cls.__module__.rpartition(".")[2] for cls in METHODS.values()}


def test_every_configuration_file_is_looked_at():
    places = {path.relative_to(config_folder()).parts[0] for path in CONFIGS}
    assert places <= {"run.yaml", "stream.yaml", *GROUPS}


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "tuned"])
def test_every_option_composes(group):
    register_all()
    assert {path.stem for path in CONFIGS if path.parent.name == group} <= set(options(group))
    for name in options(group):
        assert compose_run([f"{group}={name}"]).choices[group] == name
        if group in ("setting", "dataset"):
            assert compose_stream([f"{group}={name}"]).choices[group] == name


@pytest.mark.parametrize(
    "file", sorted(config_folder().glob("tuned/*/*.yaml")), ids=lambda f: f"{f.parent.name}-{f.stem}"
)
def test_every_tuned_file_reaches_its_pair_of_data_set_and_method(file):
    register_all()
    assert file.parent.name in options("dataset")
    composed = compose_run([f"dataset={file.parent.name}", f"method={file.stem}"])
    assert composed.tuned == f"tuned/{file.parent.name}/{file.stem}.yaml"
