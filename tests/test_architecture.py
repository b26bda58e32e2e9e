"""The import rules of pyproject.toml hold and detect violations; every method and configuration file is in use.

So do the rules for tests: unit tests mirror the folders of the package, and use only public names.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tta_bench
from tta_bench.config.compose import GROUPS, compose_launch, compose_run, compose_stream, options
from tta_bench.config.registry import config_folder, register_all
from tta_bench.methods import METHODS

PACKAGE = Path(tta_bench.__file__).parent
ROOT = PACKAGE.parent
CONFIGS = sorted(config_folder().rglob("*.yaml"))
TESTS = ROOT / "tests"
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
    assert places <= {"run.yaml", "stream.yaml", "launch.yaml", *GROUPS}


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in ("tuned", "launcher")])
def test_every_option_composes(group):
    register_all()
    assert {path.stem for path in CONFIGS if path.parent.name == group} <= set(options(group))
    for name in options(group):
        assert compose_run([f"{group}={name}"]).choices[group] == name
        if group in ("setting", "dataset"):
            assert compose_stream([f"{group}={name}"]).choices[group] == name


def test_every_launcher_composes():
    for name in options("launcher"):
        launch, rest = compose_launch([f"launcher={name}", "seed=1"])
        assert type(launch.launcher).__name__ == f"{name.title()}Launcher"
        assert [str(word) for word in rest] == ["seed=1"]


@pytest.mark.parametrize(
    "file", sorted(config_folder().glob("tuned/*/*.yaml")), ids=lambda f: f"{f.parent.name}-{f.stem}"
)
def test_every_tuned_file_reaches_its_pair_of_data_set_and_method(file):
    register_all()
    assert file.parent.name in options("dataset")
    composed = compose_run([f"dataset={file.parent.name}", f"method={file.stem}"])
    assert composed.tuned == f"tuned/{file.parent.name}/{file.stem}.yaml"


def is_mirror(test: Path, package: Path) -> bool:
    """Whether ``x/test_y.py`` or ``x/test_y_part.py`` has a module or package ``y`` below ``x``, or is of ``x``."""
    folder = package / test.parent
    nearby = folder.glob("*") if folder == package else folder.rglob("*")
    modules = {folder.name, *(path.stem for path in nearby if path.is_dir() or path.suffix == ".py")}
    subject = test.stem.removeprefix("test_")
    return any(subject == module or subject.startswith(f"{module}_") for module in modules)


def test_unit_tests_mirror_the_package():
    tests = [path.relative_to(TESTS / "unit") for path in (TESTS / "unit").rglob("test_*.py")]
    assert tests
    assert [str(test) for test in tests if not is_mirror(test, PACKAGE)] == []


def test_a_misplaced_unit_test_is_found():
    mirrors = (
        "methods/test_tent.py",
        "methods/test_dpcore_variants.py",
        "models/test_vit.py",
        "streams/test_streams.py",
    )
    assert all(is_mirror(Path(test), PACKAGE) for test in mirrors)
    strangers = ("methods/test_kinds.py", "methods/test_tents.py", "nowhere/test_tent.py", "test_tent.py")
    assert not any(is_mirror(Path(test), PACKAGE) for test in strangers)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


def private_names(tree: ast.AST) -> set[str]:
    """Private functions, classes, variables and attributes that a module defines."""
    nodes = list(ast.walk(tree))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    defined |= {node.id for node in assigned if isinstance(node, ast.Name)}
    defined |= {node.attr for node in assigned if isinstance(node, ast.Attribute)}
    return {name for name in defined if is_private(name)}


def private_uses(tree: ast.AST, private: set[str]) -> set[str]:
    """Which private names a test reaches for: an import, an attribute of anything but ``self``, a string in a call."""
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tta_bench"):
            used |= {alias.name for alias in node.names if is_private(alias.name)}
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            used |= {node.attr} & private
        elif isinstance(node, ast.Call):
            words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            used |= {word.rpartition(".")[2] for word in words} & private
    return used


def test_tests_use_public_names_only():
    private = set().union(*(private_names(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")))
    uses = {
        str(path.relative_to(TESTS)): found
        for path in TESTS.rglob("*.py")
        if (found := private_uses(ast.parse(path.read_text()), private))
    }
    assert uses == {}


@pytest.mark.parametrize(
    "line",
    [
        "from tta_bench.files import _secret",
        "method._secret(1)",
        "super()._secret()",
        "monkeypatch.setattr(method, '_secret', None)",
        "monkeypatch.setattr('tta_bench.files._secret', None)",
    ],
)
def test_a_private_name_in_a_test_is_found(line):
    module = "class A:\n    def __init__(self):\n        self._secret = 1"
    private = private_names(ast.parse(module))
    assert private == {"_secret"}
    assert private_uses(ast.parse(line), private) == private
    assert not private_uses(ast.parse("self._secret = vit._pos_embed(x)"), private)
