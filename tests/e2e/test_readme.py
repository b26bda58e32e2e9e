"""The examples of the README work as written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_commands_are_the_two_that_do_everything():
    first = re.search(r"```\n(.*?)```", README, flags=re.DOTALL)
    assert [line.split("#")[0].strip() for line in first.group(1).strip().splitlines()] == [
        "make bench SETTING=cdc",
        "make test",
    ]


def test_every_picture_is_there():
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert len(pictures) >= 7
    missing = [p for p in pictures if not (Path(__file__).parents[2] / p).is_file()]
    assert missing == []


def test_there_are_three_python_examples():
    assert len(BLOCKS) == 3


def test_the_new_method_has_at_most_thirty_lines_and_keeps_the_contract(tmp_path, monkeypatch):
    from tta_bench.testing import check_method

    (tmp_path / "mymethods.py").write_text(BLOCKS[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymethods", raising=False)
    import mymethods

    body = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.startswith(("#", "import", "from"))]
    assert len(body) <= 30
    check_method(mymethods.InfoMax)


@pytest.mark.slow
def test_the_lightning_program_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Lightning writes its own log there
    exec(compile(BLOCKS[2], "README.md", "exec"), {})


def test_the_bench_from_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = '**{"tent.lr": 1e-3, "dataset.num_images": 8, "dataset.domains": ["fog"]}, logger="off", trainer="cpu")'
    program = BLOCKS[1].replace('**{"tent.lr": 1e-3})', small).replace("runs.to_pandas()", "list(runs)")
    assert small in program
    names = {}
    exec(compile(program, "README.md", "exec"), names)
    assert [(run.method, run.seed) for run in names["table"]] == [(m, s) for s in (0, 1) for m in ("source", "tent")]
