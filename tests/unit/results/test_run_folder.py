"""Rows, counts and result files."""

from __future__ import annotations

import csv
import json
import math

import pytest

from tta_bench.files import write_json
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import COLUMNS, RowWriter, read_results, read_rows


def row(step=0, by_domain=None, **diagnostics):
    return BatchRow(step, by_domain or {"fog": (4, 1)}, 8, 4, 0.5, diagnostics)


def tally_of(*rows):
    tally = Tally()
    for one in rows:
        tally.add(one)
    return tally


def test_a_row_of_one_domain_has_its_name():
    assert (row().samples, row().wrong, row().domain) == (4, 1, "fog")


def test_a_row_of_several_domains_has_wrong_of_samples_for_each():
    mixed = row(by_domain={"fog": (12, 3), "snow": (4, 1)})
    assert (mixed.samples, mixed.wrong, mixed.domain) == (16, 4, "fog=3/12;snow=1/4")


def test_the_mean_error_weighs_domains_and_the_sample_error_weighs_samples():
    tally = tally_of(row(by_domain={"fog": (10, 5)}), row(by_domain={"snow": (90, 9)}))
    assert tally.domain_error == {"fog": 50, "snow": 10}
    assert (tally.mean_error, tally.sample_error) == (30, 14)


def test_short_batches_do_not_weigh_more():
    tally = tally_of(row(by_domain={"fog": (64, 0)}), row(by_domain={"fog": (1, 1)}))
    assert tally.mean_error == pytest.approx(100 / 65)


def test_a_mixed_batch_counts_for_each_of_its_domains():
    tally = tally_of(row(by_domain={"fog": (2, 1), "snow": (2, 0)}), row(by_domain={"snow": (2, 2)}))
    assert (tally.samples, tally.wrong) == ({"fog": 2, "snow": 4}, {"fog": 1, "snow": 2})


def test_a_summary_is_counted_from_all_rows():
    summary = tally_of(row(coreset_size=1.0), row(1, coreset_size=3.0), row(2, coreset_size=2.0)).summary()
    assert (summary["forward_per_sample"], summary["backward_per_sample"]) == (2, 1)
    assert (summary["coreset_size"], summary["seconds"], summary["seconds_per_batch_median"]) == (2, 1.5, 0.5)
    assert (summary["num_samples"], summary["domain_error"]) == ({"fog": 12}, {"fog": 25})


def test_before_the_first_batch_errors_are_unknown_and_the_summary_is_valid_json():
    assert math.isnan(Tally().mean_error)
    assert math.isnan(Tally().sample_error)
    summary = json.loads(json.dumps(Tally().summary(), allow_nan=False))
    assert (summary["mean_error"], summary["coreset_size"], summary["seconds"]) == (None, None, 0)


def test_a_method_without_a_coreset_has_no_coreset_size():
    assert tally_of(row()).summary()["coreset_size"] is None


def test_rows_have_the_promised_columns_then_the_methods_own(tmp_path):
    writer, tally = RowWriter(tmp_path / "batches.csv"), Tally()
    for step in range(3):
        one = row(step, by_domain={"fog": (4, step)}, coreset_size=2.0, distance_raw=0.25)
        tally.add(one)
        writer.write(one, tally)
    writer.close()
    with (tmp_path / "batches.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*COLUMNS, "distance_raw"]
    assert [r["error"] for r in rows] == ["0.0", "25.0", "50.0"]
    assert [float(r["running_error"]) for r in rows] == [0, 12.5, 25]
    assert (rows[2]["coreset_size"], rows[2]["distance_raw"]) == ("2.0", "0.25")


def test_a_row_is_on_disk_before_the_next_one(tmp_path):
    writer = RowWriter(tmp_path / "batches.csv")
    for lines in (2, 3):
        writer.write(row(), tally_of(row()))
        assert len((tmp_path / "batches.csv").read_text().splitlines()) == lines
    writer.close()


def test_a_new_writer_replaces_the_file(tmp_path):
    (tmp_path / "batches.csv").write_text("old\n" * 9)
    RowWriter(tmp_path / "batches.csv").close()
    assert (tmp_path / "batches.csv").read_text() == ""


def test_json_is_written_in_one_step(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_results_are_found_at_any_depth_once_in_order(tmp_path):
    for name in ("b/x", "a", "b"):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "result.json", {"name": name})
    found = read_results([tmp_path, tmp_path / "b", tmp_path / "a"])
    assert [r["name"] for r in found] == ["a", "b", "b/x"]
    assert found[0]["folder"] == str(tmp_path.resolve() / "a")


def test_no_result_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^there is no result\.json in or below .*/nothing$"):
        read_results([tmp_path / "nothing"])


class TestCalibration:
    def test_the_error_is_the_gap_between_confidence_and_accuracy_over_all_rows(self):
        """Bin 14: 4 samples of mean confidence 0.95, 2 right, gap 0.45; bin 7: 1 sample, 0.5, right, gap 0.5."""
        tally = Tally()
        for t in range(2):
            bins = {14: (2, 1.9, 1)} | ({7: (1, 0.5, 1)} if t else {})
            tally.add(BatchRow(t, {"fog": (2 + t, 1)}, 3, 0, 0.1, {}, 0.5, bins))
        assert tally.calibration_error == pytest.approx(100 * (4 * 0.45 + 0.5) / 5)
        assert tally.summary()["ece"] == tally.calibration_error
        assert tally.summary()["top_class_share"] == pytest.approx(0.5)

    def test_rows_come_back_from_the_file(self, tmp_path):
        path, tally = tmp_path / "batches.csv", Tally()
        written = BatchRow(0, {"fog": (3, 1)}, 3, 0, 0.25, {}, 2 / 3, {0: (1, 0.1, 0), 14: (2, 1.9000000000000001, 2)})
        tally.add(written)
        writer = RowWriter(path)
        writer.write(written, tally)
        writer.close()
        assert read_rows(path, path.stat().st_size) == [written]
