"""Formatting of values in the protocol card."""

from __future__ import annotations

from tta_bench.report.protocol import value_text


def test_many_kept_classes_do_not_fill_the_protocol_card():
    assert value_text(list(range(200))) == "0, 1, 2, ..., 199 (200 in all)"
    assert value_text([1, 2]) == "1, 2"
