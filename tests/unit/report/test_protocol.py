"""Formatting of values in the protocol card."""

from __future__ import annotations

from tests.helpers.report_runs import result
from tta_bench.report.groups import group_runs
from tta_bench.report.protocol import protocol_card, value_text
from tta_bench.report.runs import RunRecord


def test_devices_are_named_once_each_in_the_order_of_their_names():
    names = [f"device {k}" for k in (5, 2, 7, 0, 3, 6, 1, 4, 2)]
    (group,) = group_runs([RunRecord(result(seed=s, device=name)) for s, name in enumerate(names)])
    assert dict(protocol_card(group))["Devices"] == [f"device {k}" for k in range(8)]


def test_many_kept_classes_do_not_fill_the_protocol_card():
    assert value_text(list(range(200))) == "0, 1, 2, ..., 199 (200 in all)"
    assert value_text([1, 2]) == "1, 2"
