"""Everything that ships with the benchmark has a name as papers print it."""

from __future__ import annotations

import pytest

from tests.helpers.report_runs import result
from tta_bench.cli.known import known_options
from tta_bench.report.groups import group_runs
from tta_bench.report.names import DATASETS, METHODS, MODELS, SETTINGS, display, entry_name
from tta_bench.report.runs import RunRecord


@pytest.mark.parametrize(
    ("group", "table"),
    [("method", METHODS), ("setting", SETTINGS), ("dataset", DATASETS), ("model", MODELS)],
)
def test_every_option_has_a_name_and_every_name_an_option(group, table):
    assert set(table) == {name for name, _ in known_options(group)}
    assert group in ("dataset", "model") or len(set(table.values())) == len(table)


def test_hyper_parameters_follow_the_name_and_a_method_of_the_users_keeps_its_own():
    runs = [result("dpcore", config__method={"rho": rho}) for rho in (0.8, 0.9)]
    (group,) = group_runs(map(RunRecord, [*runs, result("my_method")]))
    assert [entry_name(entry) for entry in group.entries] == ["DPCore (rho=0.8)", "DPCore (rho=0.9)", "my method"]
    assert display(DATASETS, "imagenet_c") == "ImageNet-C"
