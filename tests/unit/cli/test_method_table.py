"""The table of methods agrees with the classes, and docs/methods.md is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tta_bench.cli.method_table import method_facts, methods_markdown
from tta_bench.methods import METHODS

DOCUMENT = Path(__file__).parents[3] / "docs" / "methods.md"


@pytest.fixture(scope="module")
def document():
    return methods_markdown()


def test_the_document_is_up_to_date(document):
    assert DOCUMENT.read_text(encoding="utf-8") == document, "docs/methods.md is out of date: run `make docs`"


def test_known_sizes(document):
    row = {line.split("|")[1].strip(" `"): line.split("|") for line in document.splitlines() if line.startswith("| `")}
    assert row.keys() == METHODS.keys()
    assert row["tent"][6].strip() == "38,400"  # 25 layer norms of width 768
    assert row["dpcore"][6].strip() == "6,144"  # 8 prompts
    assert row["sar"][6].strip() == "27,648"  # 18 layer norms


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_all_that_the_table_shows(name):
    facts = method_facts(name, METHODS[name])
    assert facts.passes, "the docstring needs a section Cost"
    assert facts.paper or name == "source"
    assert facts.provenance
