"""What a user sees during a method's source phase, which may take many passes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tta_bench.experiments.source_cache import Watched


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=80)


def said(console):
    return console.file.getvalue().splitlines()


def test_lines_count_batches_over_all_passes(console):
    loader = Watched(["a", "b"], "ViDA: source phase", console, total=6, every=-1.0)
    assert [batch for _ in range(3) for batch in loader] == ["a", "b"] * 3
    assert said(console) == [f"ViDA: source phase: batch {i} of 6" for i in range(1, 7)]


def test_one_pass_knows_its_end_by_itself(console):
    loader = Watched(["a", "b"], "DPCore: source phase", console, every=-1.0)
    assert len(loader) == 2
    list(loader)
    assert said(console)[-1] == "DPCore: source phase: batch 2 of 2"


def test_short_passes_do_not_put_off_the_next_line(console, monkeypatch):
    now = iter(range(0, 1000, 10))  # every look at the clock is ten seconds later
    monkeypatch.setattr("tta_bench.experiments.source_cache.time.monotonic", lambda: next(now))
    loader = Watched(["a"], "EcoTTA: source phase", console, total=9, every=30.0)
    for _ in range(9):
        list(loader)
    assert len(said(console)) == 2
