"""Who may import whom; and that no method, configuration file or long file escapes the rules.

The two arrows that matter most: methods never import data, streams, domains or callbacks, so that a method cannot know
where a batch came from; streams and domains never import torch, so that a stream can be looked at in a moment.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tta_bench
from tta_bench.engine.config import GROUPS, compose_run, compose_stream, options
from tta_bench.engine.nodes import config_folder, register_all
from tta_bench.methods import METHODS

PACKAGE = Path(tta_bench.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
CONFIGS = sorted(config_folder().rglob("*.yaml"))
MAX_LINES = 350

ENGINE = {"torch", "lightning", "timm", "safetensors", "numpy", "omegaconf", "hydra", "hydra_zen", "wandb", "rich"}
# Package -> (what of tta_bench it may import besides itself, which third-party modules).
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "types": (set(), {"torch"}),
    "streams": (set(), {"numpy"}),
    "domains": (set(), {"numpy", "scipy", "PIL", "cv2"}),
    "functional": (set(), {"torch", "torchvision"}),
    "confusion": (set(), set()),
    "records": ({"confusion"}, set()),
    "ranks": (set(), set()),
    "models": ({"functional", "types"}, {"torch", "timm", "safetensors", "numpy", "omegaconf"}),
    "methods": ({"functional", "models", "types"}, {"torch", "lightning"}),
    "data": ({"domains", "streams", "types"}, {"torch", "lightning", "numpy"}),
    "callbacks": ({"types", "confusion", "functional", "records", "methods.base"}, {"torch", "lightning", "rich"}),
    "report": ({"confusion", "records"}, {"rich", "jinja2"}),
    "create": ({"methods", "models"}, set()),
    "testing": ({"data", "methods.base", "models", "types"}, {"torch", "lightning", "timm", "numpy"}),
    "engine": (
        {"callbacks", "confusion", "data", "domains", "functional", "methods", "models", "ranks", "records", "report"}
        | {"streams", "types"},
        ENGINE,
    ),
    "terminal": ({"ranks", "records"}, {"typer", "rich"}),
    "cli_data": ({"engine", "terminal"}, {"typer"}),
    "cli_source": ({"engine", "terminal"}, {"typer"}),
    "cli": ({"cli_data", "cli_source", "engine", "ranks", "report", "records", "terminal"}, {"typer", "rich"}),
    "__main__": ({"cli"}, set()),
    "__init__": ({"create", "methods", "models", "streams", "types"}, set()),
}
# Slow to import, so these files import them inside a function only.
LAZY = {
    "streams/timeline.py": {"matplotlib"},
    "engine/paper_figure.py": {"matplotlib"},
    "models/segformer_loading.py": {"mmseg", "mmengine"},
    "engine/wandb_view.py": {"wandb_workspaces"},
}
METHODS_WITHOUT_ENTRY = {"__init__", "base", "warm_up"}


class Import(NamedTuple):
    """One imported name, and whether it is imported when its file is."""

    name: str
    line: int
    lazy: bool


def imports(file: str, text: str) -> Iterator[Import]:
    """All imports of a file, those in functions included, as absolute dotted names."""
    tree = ast.parse(text, file)
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = ["tta_bench", *Path(file).parts[:-1]]
            start = ".".join(parent[: len(parent) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(name, node.lineno, id(node) in lazy)


def violations(file: str, text: str) -> list[str]:
    """What a file of the package imports against the rules; ``file`` is its path below the package."""
    package = Path(file).parts[0].removesuffix(".py")
    own, third_party = ALLOWED.get(package, (set(), set()))
    found = []
    for name, line, lazy in imports(file, text):
        top, _, rest = name.partition(".")
        if top == "tta_bench":
            allowed = any(f"{rest}.".startswith(f"{target}.") for target in (package, *own))
        else:
            allowed = top in sys.stdlib_module_names or top in third_party or (lazy and top in LAZY.get(file, ()))
        if not allowed:
            found.append(f"{file}:{line} imports {name}")
    return found


def test_every_package_has_its_rules():
    parts = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()}
    parts -= {"py", "__pycache__", "configs", "paper"}
    assert len(FILES) >= 50
    assert parts == set(ALLOWED)


def test_imports_follow_the_rules():
    files = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in FILES}
    assert sum(len(list(imports(file, text))) for file, text in files.items()) >= 300
    assert [found for file, text in files.items() for found in violations(file, text)] == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("methods/tent.py", "from tta_bench.data import StreamDataModule"),
        ("methods/tent.py", "def f():\n    from tta_bench import streams"),
        ("methods/tent.py", "import tta_bench.domains.shapes"),
        ("methods/tent.py", "from ..callbacks import AdaptationMonitor"),
        ("methods/tent.py", "import tta_bench"),
        ("streams/kinds.py", "import torch"),
        ("streams/kinds.py", "def f():\n    from torch import nn"),
        ("streams/kinds.py", "def f():\n    import matplotlib.pyplot"),
        ("streams/timeline.py", "import matplotlib.pyplot"),
        ("domains/corruptions/noise.py", "from tta_bench.streams import Schedule"),
        ("domains/shapes.py", "import torch"),
        ("callbacks/monitor.py", "from tta_bench.methods import Tent"),
        ("records.py", "import numpy"),
        ("report/table.py", "import torch"),
        ("types.py", "from tta_bench.typesetting import Font"),
        ("__init__.py", "import torch"),
    ],
)
def test_a_wrong_import_is_found(file, text):
    assert len(violations(file, text)) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "methods/tent.py",
            "from __future__ import annotations\nimport torch\nfrom ..functional import softmax_entropy",
        ),
        ("methods/tent.py", "from .base import TTAMethod\nfrom tta_bench.models.backbone import Backbone"),
        ("callbacks/monitor.py", "from tta_bench.methods.base import TTAMethod"),
        ("streams/timeline.py", "def f():\n    import matplotlib.pyplot"),
        ("streams/timeline.py", "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
    ],
)
def test_a_right_import_is_let_through(file, text):
    assert violations(file, text) == []


LIGHT = {
    "import": "import tta_bench.report, tta_bench.cli, tta_bench.streams, tta_bench.domains.corrupted",
    "stream": "from tta_bench.cli import app\n"
    "app(['stream', 'show', 'setting=csc', 'dataset.num_images=8'], standalone_mode=False)",
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
    modules = {cls.__module__.rpartition(".")[2] for cls in METHODS.values()}
    assert len(files) >= 3
    assert files == modules


def test_every_configuration_file_is_looked_at():
    places = {path.relative_to(config_folder()).parts[0] for path in CONFIGS}
    assert len(CONFIGS) >= 13
    assert places == {"run.yaml", "stream.yaml", *GROUPS}


def choices_of(group: str, name: str) -> list[str]:
    """The words that choose an option; tuned values belong to one pair of data set and method."""
    if group != "tuned" or name == "off":
        return [f"{group}={name}"]
    pairs = [(d, m) for d in options("dataset") for m in options("method") if f"{d}_{m}" == name]
    assert len(pairs) == 1, f"configs/tuned/{name}.yaml belongs to no pair of data set and method"
    return [f"dataset={pairs[0][0]}", f"method={pairs[0][1]}"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_composes(group):
    register_all()
    names = options(group)
    files = {path.stem for path in CONFIGS if path.parent.name == group}
    assert files
    assert files <= set(names)
    assert len(names) >= {"setting": 10, "dataset": 3, "model": 3, "method": 4}.get(group, 1)
    for name in names:
        assert compose_run(choices_of(group, name)).choices[group] == name
        if group in ("setting", "dataset"):
            assert compose_stream([f"{group}={name}"]).choices[group] == name


def test_files_stay_short():
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert len(lines) >= 50
    assert sum(lines.values()) >= 5000
    assert {file: n for file, n in lines.items() if n > MAX_LINES} == {}
