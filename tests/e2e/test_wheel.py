"""The wheel contains everything that the program needs, and runs from an empty folder without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import tta_bench

ROOT = Path(tta_bench.__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run a command and return what it printed; ``path`` goes before all other places of Python modules."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    if path is not None:
        env |= {"PYTHONPATH": str(path), "TTA_BENCH_CACHE": str(cwd / "cache")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("tta_bench-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    pip = ("pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", "--target")
    run(sys.executable, "-m", *pip, target, wheel, cwd=wheel.parent)
    return target


def test_the_wheel_holds_the_package_its_weights_and_its_configurations(wheel):
    names = set(ZipFile(wheel).namelist())
    package = {
        str(path.relative_to(ROOT))
        for path in ROOT.joinpath("tta_bench").rglob("*")
        if path.is_file() and path.suffix in (".py", ".typed", ".safetensors", ".yaml", ".j2", ".css", ".js", ".txt")
    }
    configs = {f"tta_bench/{path.relative_to(ROOT)}" for path in ROOT.joinpath("configs").rglob("*.yaml")}
    assert len(package) >= 50
    tables = {f"tta_bench/paper/published/{path.name}" for path in ROOT.joinpath("benchmarks/paper").glob("*.yaml")}
    assert len(configs) >= 13
    assert len(tables) >= 25
    assert "tta_bench/py.typed" in package
    assert any(name.startswith("tta_bench/models/weights/") for name in package)
    assert package | configs | tables <= names
    assert {name.split("/")[0] for name in names} == {"tta_bench", f"tta_bench-{tta_bench.__version__}.dist-info"}
    assert f"tta_bench-{tta_bench.__version__}.dist-info/licenses/LICENSE" in names


def test_the_wheel_says_the_version_of_the_package(installed, tmp_path):
    code = "import tta_bench, importlib.metadata as m; print(tta_bench.__file__, m.version('tta_bench'))"
    file, version = run(sys.executable, "-c", code, cwd=tmp_path, path=installed).split()
    assert Path(file).is_relative_to(installed)
    assert version == tta_bench.__version__


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["list", "settings"], "cdc_2d"),
        (["list", "methods"], "dpcore"),
        (["reproduce", "components", "dataset=shapes_c", "--dry-run"], "method=dpcore_exp3"),
        (["stream", "show", "setting=csc", "dataset.num_images=64"], "gaussian_noise"),
        (["bench", "setting=csc", "dataset.num_images=20", "methods=[source,tent]", "logger=off"], "gain over source"),
    ],
    ids=lambda value: "_".join(value[:2]) if isinstance(value, list) else "",
)
def test_the_installed_program_runs_from_an_empty_folder(words, expected, installed, tmp_path):
    printed = run(sys.executable, installed / "bin" / "tta-bench", *words, cwd=tmp_path, path=installed)
    assert expected in printed
    if words[0] == "bench":
        assert len(list(tmp_path.glob("runs/shapes_c/csc/*/seed0-*/result.json"))) == 2
