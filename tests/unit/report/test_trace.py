"""Runs reduced to what reports show: numbers by hand, and kept beside the run until something changes."""

from __future__ import annotations

import json

import pytest

from tests.helpers.report_runs import result, write_run
from tests.helpers.segmented_runs import write_segmented
from tta_bench.report import FORMATS, report_text
from tta_bench.report.trace import KEPT, Trace, reduced
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import read_results

BATCHES = [{"fog": (4, 1)}, {"fog": (2, 1), "snow": (2, 0)}, {"snow": (4, 3)}]


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", result("dpcore"), BATCHES, coreset_size=[1.0, 1.0, 2.0], distance_raw=[2, 1, 3])


def content(folder):
    (found,) = read_results([folder])
    return found


def edit(folder, change):
    """Change what is kept of a run."""
    kept = json.loads((folder / KEPT).read_text())
    change(kept)
    (folder / KEPT).write_text(json.dumps(kept))


def test_curves_are_over_the_samples_so_far(folder):
    trace = reduced(content(folder)).trace
    assert trace.curves == {
        "running_error": [(1.0, 25.0), (2.0, 25.0), (3.0, pytest.approx(100 * 5 / 12))],
        "coreset_size": [(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)],
        "distance_raw": [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)],
    }


def test_in_a_block_of_batches_sizes_are_the_last_and_distances_the_mean():
    """601 batches are 201 blocks of 3; the last has a single batch."""
    rows = [BatchRow(t, {"fog": (1, 0)}, 1, 0, 0.1, {"coreset_size": t, "distance_raw": t}) for t in range(601)]
    curves = Trace.of(rows, Tally()).curves
    assert curves["coreset_size"][:2] == [(3.0, 2), (6.0, 5)]
    assert curves["distance_raw"][:2] == [(3.0, 1.0), (6.0, 4.0)]
    assert [len(curves[name]) for name in ("coreset_size", "running_error")] == [201, 201]
    assert curves["coreset_size"][-1] == (601.0, 600)


def test_bins_of_confidence_are_added():
    rows = [BatchRow(t, {"fog": (3, 1)}, 3, 0, 0.1, calibration={7: (1, 0.5, t), 14: (2, 1.9, 2)}) for t in range(2)]
    assert Trace.of(rows, Tally()).calibration == {7: (2, 1.0, 1), 14: (4, 3.8, 4)}


@pytest.mark.parametrize("write", [lambda home: write_run(home, result(), BATCHES), write_segmented])
def test_what_is_kept_is_what_was_read(tmp_path, write):
    folder = write(tmp_path / "run")
    read = reduced(content(folder))
    kept = reduced(content(folder))
    assert read == kept
    assert read.trace.visits
    assert bool(kept.trace.confusion) == (write is write_segmented)
    edit(folder, lambda kept: kept["trace"].update(steps=99))
    assert reduced(content(folder)).trace.steps == 99


@pytest.mark.parametrize("name", ["batches.csv", "stream.json", "config.yaml", "result.json"])
def test_it_is_read_again_once_a_file_changes(folder, name):
    assert reduced(content(folder)).disagreements == []
    path = folder / name
    path.write_text(path.read_text().replace("0", "1", 1))
    assert f"{name} was changed after the run" in reduced(content(folder)).disagreements


def test_it_is_read_again_by_other_code(folder):
    reduced(content(folder))
    assert len(json.loads((folder / KEPT).read_text())["key"]["code"]) == 64  # a SHA-256
    edit(folder, lambda kept: (kept["trace"].update(steps=99), kept["key"].update(code="of yesterday")))
    assert reduced(content(folder)).trace.steps == 3


@pytest.mark.parametrize("damage", ["", "{}", '{"key": 1', "[1]"])
def test_it_is_read_again_if_what_was_kept_is_damaged(folder, damage):
    read = reduced(content(folder))
    (folder / KEPT).write_text(damage)
    assert reduced(content(folder)) == read


def test_nothing_is_kept_of_a_run_that_goes_on(tmp_path):
    folder = write_run(tmp_path / "run", result(status="running"), BATCHES)
    assert reduced(content(folder)).trace.steps == 3
    assert not (folder / KEPT).exists()


def test_a_folder_that_cannot_be_written_is_read(folder):
    (folder / KEPT).mkdir()
    assert reduced(content(folder)).trace.steps == 3


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("status", ["done", "failed", "interrupted", "running"])
def test_rows_that_cannot_be_read_are_said(tmp_path, form, status):
    folder = write_run(tmp_path / "run", result(status=status), BATCHES)
    path = folder / "batches.csv"
    path.write_bytes(path.read_bytes().replace(b"\r\n1,", b"\r\none,"))
    for _ in range(2):  # also when it was kept
        text = " ".join(report_text([content(folder)], form).split())
        assert "batches.csv has a row that cannot be read, line 3: invalid literal for int()" in text.replace(
            "\\_", "_"
        )
