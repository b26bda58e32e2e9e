"""Confusion matrices as counts: IoU compared with numpy, rounds, writing and reading."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from tta_bench.results.confusion import IouTally, class_iou, from_text, mean_iou, to_text
from tta_bench.results.rows import BatchRow, Tally, logged_numbers
from tta_bench.results.run_folder import CONFUSION, RowWriter, read_rows

K = 5


def matrix(seed, absent=()):
    """Counts (K, K), some of them zero, without the classes in ``absent``."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (K, K)) * (rng.random((K, K)) < 0.7)
    counts[list(absent)] = counts[:, list(absent)] = 0
    return counts


def sparse(counts):
    return {(int(a), int(b)): int(counts[a, b]) for a, b in np.argwhere(counts)}


def iou(counts):
    """As in numpy: intersection over union in percent, nan where there is neither."""
    both = np.diag(counts)
    with np.errstate(invalid="ignore"):
        return 100 * both / (counts.sum(0) + counts.sum(1) - both)


@pytest.mark.parametrize("absent", [(), (1, 4)])
def test_iou_is_that_of_numpy_without_absent_classes(absent):
    counts = matrix(0, absent)
    found = class_iou(sparse(counts))
    assert set(found) == set(range(K)) - set(absent)
    assert [found.get(k, np.nan) for k in range(K)] == pytest.approx(iou(counts).tolist(), nan_ok=True)
    assert mean_iou(sparse(counts)) == pytest.approx(np.nanmean(iou(counts)))


def test_a_class_that_is_only_called_counts_and_nothing_counts_as_none():
    assert class_iou({(0, 0): 3, (0, 2): 1}) == {0: 75.0, 2: 0.0}
    assert mean_iou({(0, 0): 3, (0, 2): 1}) == 37.5
    assert mean_iou({}) is None


def test_rounds_have_matrices_of_their_own_and_classes_pool_them():
    """Two rounds of two batches; the mean over rounds and domains differs from the IoU of the sums."""
    parts = [[matrix(4 * r + d, absent=(4,)) for d in range(2)] for r in range(2)]
    tally = IouTally(("a", "b", "c", "d", "e"), steps_per_round=2)
    for step, (r, d) in enumerate([(0, 0), (0, 1), (1, 1), (1, 0)]):
        tally.add(step, {("fog", "snow")[d]: sparse(parts[r][d])})
    each = [[np.nanmean(iou(counts)) for counts in of_round] for of_round in parts]
    summary = tally.summary()
    assert summary["domain_iou"] == pytest.approx({"fog": np.mean([e[0] for e in each]), "snow": np.mean(each, 0)[1]})
    assert summary["mean_iou"] == pytest.approx(np.mean(each))
    assert summary["pooled_iou"] == pytest.approx(np.nanmean(iou(sum(map(sum, parts)))))
    for r, found in enumerate(summary["iou_by_round"]):
        assert found["mean"] == pytest.approx(np.mean(each[r]))
        assert found["domain"] == pytest.approx({"fog": each[r][0], "snow": each[r][1]})
    pooled = iou(sum(map(sum, parts)))
    assert summary["class_iou"] == pytest.approx({**dict(zip("abcd", pooled, strict=False)), "e": None})
    snow = iou(parts[0][1] + parts[1][1])
    assert summary["class_iou_by_domain"]["snow"] == pytest.approx({**dict(zip("abcd", snow, strict=False)), "e": None})
    assert abs(summary["mean_iou"] - summary["pooled_iou"]) > 0.1


def test_a_stream_that_was_cut_off_has_the_rounds_that_it_began():
    tally = IouTally(("a", "b"), steps_per_round=2)
    for step, name in enumerate(("fog", "snow", "fog")):
        tally.add(step, {name: {(0, 0): 1, (0, 1): step}})
    assert [set(found["domain"]) for found in tally.summary()["iou_by_round"]] == [{"fog", "snow"}, {"fog"}]
    assert tally.summary()["domain_iou"] == {"fog": pytest.approx((100 + 100 / 6) / 2), "snow": 25.0}


def test_without_a_pixel_that_counts_there_is_no_number():
    tally = Tally(IouTally(("a", "b")))
    assert tally.summary()["mean_iou"] is None
    tally.add(BatchRow(0, {"fog": (1, 0.0)}, 1, 0, 0.1, confusion={"fog": {}}))
    summary = tally.summary()
    assert (summary["mean_iou"], summary["domain_iou"]) == (None, {"fog": None})
    assert summary["class_iou"] == {"a": None, "b": None}
    assert not any("iou" in key for key in logged_numbers(BatchRow(0, {"fog": (1, 0.0)}, 1, 0, 0.1), tally))


def test_text_keeps_counts_and_the_order_of_domains():
    counts = {"a>b=c;d": {(0, 0): 12, (10, 3): 7}, "snow": {}, "fog": {(1, 1): 2**40}}
    text = to_text(counts)
    assert text == "0>0=12 10>3=7;;1>1=1099511627776"
    assert from_text(text, list(counts)) == counts
    with pytest.raises(ValueError, match="zip"):
        from_text(text, ["fog"])


class TestRows:
    ROWS = (
        BatchRow(
            0, {"fog": (1, 0.1)}, 1, 0, 0.25, {"loss": 0.5}, 0.5, {14: (3, 2.9, 3)}, {"fog": {(0, 0): 9, (0, 1): 1}}
        ),
        BatchRow(
            1,
            {"fog": (2, 1 / 3), "snow": (1, 0.0)},
            3,
            0,
            0.5,
            {"loss": 0.1},
            0.5,
            {},
            {"fog": {(1, 1): 2}, "snow": {}},
        ),
        BatchRow(2, {"snow": (1, 1e-7)}, 1, 0, 0.5, {"loss": 0.1}, 1.0, {}, {"snow": {(1, 0): 1, (1, 1): 9_999_999}}),
    )

    def written(self, path, rows):
        tally, writer = Tally(), RowWriter(path)
        for row in rows:
            tally.add(row)
            writer.write(row, tally)
        writer.close()
        return tally

    def test_come_back_as_they_were_and_give_the_same_summary(self, tmp_path):
        path = tmp_path / "batches.csv"
        before = self.written(path, self.ROWS)
        rows = read_rows(path, path.stat().st_size)
        assert rows == list(self.ROWS)
        after = Tally(IouTally(("a", "b"), 2))
        for row in rows:
            after.add(row)
        assert after.summary()["class_iou"] == {"a": pytest.approx(900 / 11), "b": before.summary()["class_iou"]["1"]}
        assert [list(found["domain"]) for found in after.summary()["iou_by_round"]] == [["fog", "snow"], ["snow"]]

    def test_of_many_classes_are_read(self, tmp_path):
        counts = {(a, b): 10**6 + b for a in range(150) for b in range(150)}
        row = BatchRow(0, {"fog": (1, 0.5)}, 1, 0, 0.25, confusion={"fog": counts})
        self.written(tmp_path / "batches.csv", [row])
        size = (tmp_path / "batches.csv").stat().st_size
        assert size > 2**17  # csv's own limit of a cell
        assert read_rows(tmp_path / "batches.csv", size) == [row]

    def test_of_classified_images_have_no_such_column_and_whole_numbers(self, tmp_path):
        row = BatchRow(0, {"fog": (3, 1), "snow": (1, 0)}, 4, 0, 0.25)
        tally = self.written(tmp_path / "batches.csv", [row])
        with (tmp_path / "batches.csv").open(newline="") as file:
            (line,) = csv.DictReader(file)
        assert CONFUSION not in line
        assert (line["domain"], line["wrong"]) == ("fog=1/3;snow=0/1", "1")
        assert tally.iou is None
        assert not any("iou" in key for key in (*tally.summary(), *logged_numbers(row, tally)))

    def test_that_were_cut_off_in_the_middle_are_refused(self, tmp_path):
        path = tmp_path / "batches.csv"
        self.written(path, self.ROWS)
        head, *lines = path.read_text().splitlines(keepends=True)
        path.write_text(head + ",".join(lines[0].split(",")[:12]) + "\n")
        with pytest.raises(ValueError, match="has a row that cannot be read"):
            read_rows(path, path.stat().st_size)


def test_loggers_get_the_iou_so_far():
    tally = Tally(IouTally(("a", "b")))
    for row in TestRows.ROWS[:2]:
        tally.add(row)
    logged = logged_numbers(TestRows.ROWS[1], tally)
    assert logged["stream/running_iou"] == pytest.approx((90 + 200 / 3) / 2)
    assert logged["domain/fog_iou"] == logged["stream/running_iou"]
    assert "domain/snow_iou" not in logged
    assert logged["domain/fog"] == pytest.approx(100 * (0.1 + 1 / 3) / 3)


def test_loggers_get_the_mean_over_the_rounds_so_far_of_the_domains_of_a_batch():
    tally = IouTally(steps_per_round=2)
    tally.add(0, {"fog": {(0, 0): 1}})  # 100 %
    tally.add(1, {"snow": {(0, 1): 1}})
    assert tally.logged(["fog"]) == {"stream/running_iou": 25.0, "domain/fog_iou": 100.0}
    tally.add(2, {"fog": {(0, 0): 1, (0, 1): 1}})  # 50 % and 0 %
    assert tally.logged(["fog"])["domain/fog_iou"] == (100 + 25) / 2
