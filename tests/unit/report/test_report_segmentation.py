"""Reports of segmentation runs: higher is better, rounds as columns, and the pixel error."""

from __future__ import annotations

import csv
import io
import re

import pytest

from tests.helpers.report_runs import result
from tests.helpers.segmented_runs import write_segmented
from tests.helpers.tables import cells, shown
from tta_bench.report import FORMATS, report_text
from tta_bench.report.groups import group_runs
from tta_bench.report.measures import column_measures, domain_measures
from tta_bench.report.runs import RunRecord
from tta_bench.report.table import methods_across
from tta_bench.results.run_folder import read_results

DOMAINS = ("fog", "night")


def segmented(method, rounds, seed=0, **changes):
    """A result with these mean IoUs, (fog, night) in each round."""
    by_domain = dict(zip(DOMAINS, (sum(column) / len(rounds) for column in zip(*rounds, strict=True)), strict=True))
    return result(
        method, seed, domains=list(DOMAINS), dataset="streets_c", model="streets_segformer",
        domain_error=dict.fromkeys(DOMAINS, 10.0), mean_error=10.0, domain_iou=by_domain,
        mean_iou=sum(by_domain.values()) / 2, pooled_iou=50.0,
        iou_by_round=[{"mean": sum(pair) / 2, "domain": dict(zip(DOMAINS, pair, strict=True))} for pair in rounds],
        **changes,
    )  # fmt: skip


ONE = [
    segmented("source", [(60.0, 40.0)]),
    segmented("tent", [(62.0, 39.0)]),
    segmented("dpcore", [(66.0, 46.0)]),
]
THREE = [
    segmented("source", [(60.0, 40.0)] * 3),
    segmented("tent", [(62.0, 39.0), (59.0, 38.0), (58.0, 37.0)]),
    segmented("dpcore", [(66.0, 46.0), (67.0, 47.0), (68.0, 48.0)]),
]


class TestTheTerminal:
    def test_shows_the_iou_of_each_domain_and_says_that_higher_is_better(self):
        (lines,) = shown(*ONE)
        assert cells(lines, "fog") == ["60.0", "62.0", "66.0"]
        assert cells(lines, "mean  ") == ["50.0", "50.5", "56.0"]
        assert cells(lines, "gain over source") == ["+0.0", "+0.5", "+6.0"]
        assert cells(lines, "pixel error") == ["10.0"] * 3
        assert "mean IoU in %, higher is better" in "\n".join(lines)

    def test_shows_each_round_and_its_mean(self):
        (lines,) = shown(*THREE)
        assert cells(lines, "night, round 2") == ["40.0", "38.0", "47.0"]
        assert cells(lines, "mean, round 3") == ["50.0", "47.5", "58.0"]
        assert cells(lines, "mean  ") == ["50.0", "48.8", "57.0"]

    def test_marks_the_highest(self):
        (group,) = group_runs(map(RunRecord, ONE))
        table = methods_across(group)
        marked = [["bold green" in str(cell) for cell in list(column.cells)[:3]] for column in table.columns[1:]]
        assert marked == [[False] * 3, [False] * 3, [True] * 3]


def test_source_need_not_be_there_for_a_gain():
    (lines,) = shown(segmented("tent", [(62.0, 39.0)], source_mean_error=90.0, source_mean_iou=45.0))
    assert cells(lines, "gain over source") == ["+5.5"]


def test_ranks_of_iou_and_of_pixel_errors_run_in_their_own_directions():
    (group,) = group_runs(map(RunRecord, ONE))
    (fog, night) = domain_measures(group)
    assert {e.label: r for e, r in fog.ranks(group).items()} == {"dpcore": 1, "tent": 2}
    assert {e.label: r for e, r in night.ranks(group).items()} == {"dpcore": 1, "source": 2}
    assert [m.key for m in column_measures(group)] == ["domain_iou/fog", "domain_iou/night"]


class TestMarkdown:
    def test_has_rounds_marks_and_gains(self):
        lines = report_text(THREE, "markdown").splitlines()
        head = next(line for line in lines if line.startswith("| Method | Round 1: fog"))
        assert head.split(" | ")[1:5] == ["Round 1: fog", "Round 1: night", "Round 1: mean", "Round 2: fog"]
        assert head.endswith("| Mean IoU | Gain over source (95 % interval) |")
        (row,) = [line for line in lines if line.startswith("| dpcore | **66.0** | **46.0** | **56.0** | **67.0** |")]
        assert row.endswith("| **57.0** | +7.0 |")
        assert "Mean IoU in %, higher is better; **best**" in "\n".join(lines)

    def test_has_the_pixel_error_among_the_further_measures(self):
        text = report_text(THREE, "markdown")
        assert re.search(r"\| Method \| .*Mean IoU over all pixels \| Pixel error \|", text)


class TestLatex:
    def test_has_the_papers_columns(self):
        lines = report_text(THREE, "latex").splitlines()
        assert (
            r" & \multicolumn{3}{c}{Round 1} & \multicolumn{3}{c}{Round 2} & \multicolumn{3}{c}{Round 3} & & \\"
            in lines
        )
        assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-7} \cmidrule(lr){8-10}" in lines
        heads = " & ".join(["Method", *["fog", "night", "mean"] * 3, r"Mean$\uparrow$", r"Gain$\uparrow$ \\"])
        assert heads in lines
        assert any(
            line.startswith(r"\caption{Mean IoU (\%, higher is better) on Streets-C under CDC with Seg")
            for line in lines
        )
        (row,) = [line for line in lines if line.startswith("Tent &")]
        assert row.endswith(r"47.5 & 48.8 & $-1.2$ \\")


def test_csv_has_domains_rounds_and_means():
    lines = list(csv.DictReader(io.StringIO(report_text(THREE, "csv"))))
    found = {(r["measure"], r["domain"]): r["value"] for r in lines if r["method"] == "dpcore" and r["seed"]}
    assert found["domain_iou", "fog"] == "67.0"
    assert found["iou_round_3", "night"] == "48.0"
    assert found["iou_round_3", ""] == "58.0"
    assert (found["mean_iou", ""], found["mean_error", ""]) == ("57.0", "10.0")
    (gain,) = [r["value"] for r in lines if r["measure"] == "gain over source" and r["method"] == "tent"
               and r["statistic"] == "mean"]  # fmt: skip
    assert float(gain) == pytest.approx(48.8333 - 50, abs=1e-3)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Run folders of two methods, with rows."""
    home = tmp_path_factory.mktemp("runs")
    for method, right in (("source", 6), ("tent", 8)):
        write_segmented(home / method, method, right=right)
    return home


class TestThePage:
    def test_marks_and_sorts_by_the_highest(self, home):
        text = report_text(read_results([home]), "html")
        assert "Mean IoU in %, higher is better." in text
        assert text.index('data-value="tent"') < text.index('data-value="source"')
        rows = text.split("<tr data-entry=")[1:3]
        assert ["p-error best" in row for row in rows] == [True, False]
        assert re.search(r'data-first="descending"[^>]*><button[^>]*>Mean IoU', text)
        assert re.search(r'data-first="ascending"[^>]*><button[^>]*>Pixel error', text)

    def test_draws_the_iou_so_far(self, home):
        text = report_text(read_results([home]), "html")
        for heading in ("Running mean IoU", "Cost against mean IoU", "Mean IoU by domain"):
            assert heading in text
        assert "Running error" not in text
        (run,) = [RunRecord(r) for r in read_results([home]) if r["method"] == "source"]
        expected = [100 * (6 / 10 + 10 / 14) / 2, 100 * (11 / 20 + 20 / 29) / 2]
        assert run.trace.curves["running_iou"] == [(t + 1.0, pytest.approx(iou)) for t, iou in enumerate(expected)]

    def test_says_both_directions_where_both_are_shown(self, home):
        text = report_text([*read_results([home]), result("tent")], "html")
        assert "Errors in %, lower is better; mean IoU in %, higher is better." in text


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_takes_runs_that_gave_no_iou(form):
    unknown = {"mean_iou": None, "domain_iou": {}, "iou_by_round": [], "domain_error": {}, "mean_error": None}
    failed = {**segmented("tent", [(1.0, 1.0)], status="failed"), **unknown}
    assert "tent" in report_text([failed, *ONE], form).lower()
    assert "tent" in report_text([failed], form).lower()
