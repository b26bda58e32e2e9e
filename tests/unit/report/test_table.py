"""Comparison tables: which runs share a table and a column, and the content of cells."""

from __future__ import annotations

import copy
from io import StringIO

import pytest
from rich.console import Console

from tests.helpers.tables import cells, shown
from tta_bench.report import comparison_tables
from tta_bench.report.groups import group_runs
from tta_bench.report.runs import RunRecord
from tta_bench.report.table import methods_across


def result(method="tent", seed=0, errors=(40.0, 20.0), **changes):
    """A result; changes are given by dotted key, ``__`` for the dot."""
    made = {
        "method": method, "dataset": "shapes_c", "setting": "cdc", "model": "shapes_vit", "seed": seed,
        "status": "done", "weights_sha256": "ab", "preprocess": {"mean": [0.5], "std": [0.25]},
        "domains": ["noise", "fog"], "data": {"severity": 5, "num_images": 10},
        "domain_error": dict(zip(("noise", "fog"), errors, strict=True)), "mean_error": sum(errors) / 2,
        "source_mean_error": 35.0, "forward_per_sample": 1.0, "backward_per_sample": 1.0, "coreset_size": None,
        "seconds": 2.0,
        "config": {
            "setting": {"kind": "cdc", "delta": 1.0}, "trainer": {"precision": "32-true"},
            "model": {"compile": "off"}, "method": {"lr": 0.1},
        },
    }  # fmt: skip
    made = copy.deepcopy(made)
    for key, value in changes.items():
        *parents, last = key.split("__")
        node = made
        for parent in parents:
            node = node[parent]
        node[last] = value
    return made


@pytest.mark.parametrize(
    ("change", "value", "note"),
    [
        ("setting", "csc", ""),
        ("dataset", "other", ""),
        ("model", "other", ""),
        ("weights_sha256", "cd", "weights_sha256=cd"),
        ("preprocess", {"mean": [0.0], "std": [1.0]}, "preprocess="),
        ("domains", ["noise"], "domains="),
        ("data__severity", 3, "dataset.severity=3"),
        ("config__setting__delta", 0.1, "setting.delta=0.1"),
        ("config__trainer__precision", "16-mixed", "trainer.precision=16-mixed"),
    ],
)
def test_runs_of_another_protocol_have_a_table_of_their_own_that_says_why(change, value, note):
    tables = shown(result(), result("source"), result(**{change: value}))
    assert [len(cells(lines, "domain")) for lines in tables] == [2, 1]
    assert note in "".join(tables[1][:4])


def test_seeds_share_a_column_with_mean_and_standard_deviation():
    (lines,) = shown(
        result(seed=0, errors=(40, 20)), result(seed=1, errors=(44, 20)), result("source", errors=(50, 20))
    )
    assert cells(lines, "noise") == ["42.0 ± 2.8", "50.0"]
    assert cells(lines, "fog") == ["20.0 ± 0.0", "20.0"]
    assert cells(lines, "mean") == ["31.0 ± 1.4", "35.0"]
    assert "seeds 0, 1" in lines[0]


def test_another_hyper_parameter_is_another_column_not_another_seed():
    (lines,) = shown(result(), result("source"), result(config__method={"lr": 0.5}, errors=(10, 10)))
    assert cells(lines, "domain") == ["tent lr=0.1", "source", "tent lr=0.5"]
    assert cells(lines, "mean") == ["30.0", "30.0", "10.0"]


def test_one_seed_has_no_standard_deviation():
    (lines,) = shown(result())
    assert "±" not in "".join(lines)


def test_the_gain_is_over_the_source_of_the_same_runs():
    (lines,) = shown(result(), result("dpcore", source_mean_error=None))
    assert cells(lines, "gain over source") == ["+5.0", "–"]


def test_a_failed_run_shows_and_gives_no_numbers():
    failed = result("dpcore", status="failed", domain_error={"noise": 1.0}, mean_error=1.0)
    (lines,) = shown(result(), failed, result(seed=1, status="running", mean_error=None, domain_error={}))
    assert cells(lines, "domain") == ["tent (1 running)", "dpcore (1 failed)"]
    assert cells(lines, "mean") == ["30.0", "–"]


def test_only_failed_runs_make_a_table_without_domains():
    (lines,) = shown(result(status="failed", mean_error=None, domain_error={}))
    assert cells(lines, "mean") == ["–"]


def test_the_best_of_each_row_is_marked_unless_all_are_equal():
    (group,) = group_runs(map(RunRecord, [result(errors=(40, 20)), result("source", errors=(30, 20))]))
    table = methods_across(group)
    columns = [[str(cell) for cell in column.cells] for column in table.columns[1:]]
    marked = [["bold green" in cell for cell in column[:3]] for column in columns]
    assert marked == [[False, False, False], [True, False, True]]  # noise, fog where both are equal, mean


def test_a_single_method_is_not_marked_as_the_best():
    (group,) = group_runs([RunRecord(result())])
    table = methods_across(group)
    assert "green" not in str([list(column.cells) for column in table.columns])


def test_domains_stand_in_the_order_of_the_data_set():
    (lines,) = shown(result(domain_error={"fog": 20.0, "noise": 40.0}))
    text = "\n".join(lines)
    assert text.index("noise") < text.index("fog")


class TestWhatDoesNotFitAcross:
    """Many methods stand below each other, one per line, whatever the width."""

    @pytest.fixture
    def lines(self):
        results = [result(f"method_{i}", errors=(40.0 - i, 20.0 - i)) for i in range(12)]
        results.append(result("broken", status="failed", domain_error={}, mean_error=None))
        console = Console(width=80, record=True, file=StringIO())
        console.print(comparison_tables(results)[0])
        return console.export_text().splitlines()

    def test_the_best_comes_first_and_one_without_a_mean_last(self, lines):
        methods = [line.split()[1] for line in lines if line.startswith("│")]
        assert methods == [*(f"method_{i}" for i in reversed(range(12))), "broken"]

    def test_each_has_its_mean_its_gain_and_its_cost(self, lines):
        assert [cell.strip() for cell in lines[4].split("│")[1:-1]] == [
            "method_11", "19.0", "+16.0", "1.00", "1.00", "–", "2.0",
        ]  # fmt: skip

    def test_nothing_is_wider_than_the_terminal(self, lines):
        assert max(map(len, lines)) <= 80
