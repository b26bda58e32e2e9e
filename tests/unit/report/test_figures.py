"""Figures for papers: what is drawn are the numbers of the runs; the files are the same every time."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from tests.helpers.report_runs import result, write_run
from tests.helpers.segmented_runs import write_segmented
from tta_bench.report import report_figures
from tta_bench.report.figures import FIGURES, NothingToDrawError, average, confusion_of, reliability_of
from tta_bench.report.groups import group_runs
from tta_bench.report.looks import looks_of
from tta_bench.report.runs import RunRecord
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import RowWriter, read_results, write_result

WRONG = {"source": (4, 3), "tent": (3, 2), "dpcore": (1, 0)}
"""Per method, the wrong predictions of four in each batch, with seed 0 and with seed 1."""


def write(home, method, seed, wrong, steps=4, **changes):
    batches = [{"fog" if t < 2 else "snow": (4, wrong)} for t in range(steps)]
    sizes = {"coreset_size": [1.0 + t * (1 + seed) for t in range(steps)]} if method == "dpcore" else {}
    return write_run(home / f"{method}{seed}", result(method, seed, **changes), batches, **sizes)


@pytest.fixture
def home(tmp_path):
    for method, counts in WRONG.items():
        for seed, wrong in enumerate(counts):
            write(tmp_path / "runs", method, seed, wrong)
    return tmp_path / "runs"


def drawn(home, kind, number=0):
    groups = group_runs(map(RunRecord, read_results([home])))
    return FIGURES[kind](groups[number], looks_of(groups))


def line(figure, label):
    (found,) = [line for line in figure.axes[0].lines if line.get_label() == label]
    return found.get_xdata().tolist(), found.get_ydata().tolist()


def points(figure, label):
    """Of points with error bars: their places, heights and half lengths of the bars."""
    (found,) = [bars for bars in figure.axes[0].containers if bars.get_label() == label]
    marks, _, (bars,) = found
    ends = [(bottom[1], top[1]) for bottom, top in bars.get_segments()]
    return marks.get_xdata().tolist(), marks.get_ydata().tolist(), [(top - bottom) / 2 for bottom, top in ends]


def test_a_curve_is_the_mean_over_the_streams_with_a_band_of_one_deviation(home):
    figure = drawn(home, "error_over_stream")
    assert line(figure, "Tent") == ([1, 2, 3, 4], [62.5] * 4)  # 75 % and 50 %
    assert line(figure, "Source")[1] == [87.5] * 4
    bands = [band.get_paths()[0].vertices[:, 1] for band in figure.axes[0].collections]
    deviation = np.std([75, 50], ddof=1)
    assert any(np.allclose([band.min(), band.max()], [62.5 - deviation, 62.5 + deviation]) for band in bands)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["Source", "DPCore", "Tent"]  # the baseline, then the best first


def test_curves_of_different_lengths_are_averaged_where_all_are_known():
    band = average([[(2, 10.0), (4, 20.0)], [(1, 0.0), (3, 4.0), (5, 8.0), (7, 100.0)]])
    assert band.x.tolist() == [2, 4]
    assert band.mean.tolist() == [6, 13]  # 10 and 2, 20 and 6
    assert band.std.tolist() == pytest.approx([np.std([10, 2], ddof=1), np.std([20, 6], ddof=1)])
    assert average([[(1, 5.0)]]).std.tolist() == [0]


def test_a_coreset_is_averaged_over_the_streams(home):
    figure = drawn(home, "coreset_growth")
    assert line(figure, "DPCore") == ([1, 2, 3, 4], [1, 2.5, 4, 5.5])
    assert len(figure.axes[0].lines) == 1
    assert figure.axes[0].get_ylim()[0] == 0


def test_each_domain_has_the_mean_and_the_deviation_of_each_method(home):
    write(home, "eata", 0, 1)
    figure = drawn(home, "error_by_domain")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["Snow", "Fog"]
    x, means, deviations = points(figure, "Tent")
    assert [round(at) for at in x] == [0, 1]
    assert means == [62.5, 62.5]
    assert deviations == pytest.approx([np.std([75, 50], ddof=1)] * 2)
    assert points(figure, "EATA [1 of 2 streams]")[1:] == ([25.0, 25.0], [0, 0])


def test_costs_are_all_passes_of_a_sample(home):
    """The numbers of CoTTA are edited, so that they contradict its batches, which its name says."""
    for seed in (0, 1):
        folder = write(home, "cotta", seed, 2)
        (content,) = read_results([folder])
        write_result(folder, {**content, "forward_per_sample": 30.0, "backward_per_sample": 12.5})
    figure = drawn(home, "cost_against_error")
    assert points(figure, "CoTTA [inconsistent files]") == ([42.5], [50.0], [0])
    assert points(figure, "Tent")[:2] == ([2.0], [62.5])
    assert figure.axes[0].get_xscale() == "log"
    names = {text.get_text(): text.xy for text in figure.axes[0].texts}
    assert names == {
        "Source": (2, 87.5),
        "Tent": (2, 62.5),
        "DPCore": (2, 12.5),
        "CoTTA [inconsistent files]": (42.5, 50),
    }


def write_bins(folder, bins):
    """Write batches with these bins of confidence instead of a run's own."""
    writer, tally = RowWriter(folder / "batches.csv"), Tally()
    row = BatchRow(0, {"fog": (4, 1)}, 4, 4, 0.1, calibration=bins)
    tally.add(row)
    writer.write(row, tally)
    writer.close()


def test_accuracy_against_confidence_is_over_all_samples_of_all_streams(home):
    """Bin 14: confidences 0.9 and 0.96, three of four right. Bin 7: 0.5, none of two."""
    write_bins(home / "tent0", {14: (1, 0.9, 1), 7: (2, 1.0, 0)})
    write_bins(home / "tent1", {14: (3, 2.88, 2)})
    x, y = line(drawn(home, "reliability"), "Tent [inconsistent files]")
    assert x == pytest.approx([50, 100 * 3.78 / 4])
    assert y == [0, 75]
    assert [len(part) for part in reliability_of([])] == [0, 0]


def save_predictions(folder, pairs):
    with (folder / "predictions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([("path", "step", "label", "predicted"), *(("a.png", 0, *pair) for pair in pairs)])


def test_confusions_are_shares_of_the_true_class(home):
    """Class 0: two of three right; class 1: none of one; an image without a label does not count."""
    save_predictions(home / "dpcore0", [(0, 0), (0, 1), ("", 1)])
    save_predictions(home / "dpcore1", [(0, 0), (1, 0)])
    save_predictions(home / "source0", [(0, 0)])
    figure = drawn(home, "confusion")
    base, best = figure.axes[:2]
    assert (base.get_title(), best.get_title()) == ("Source", "DPCore")
    assert best.images[0].get_array().tolist() == pytest.approx(np.array([[200 / 3, 100 / 3], [100, 0]]))
    assert [text.get_text() for text in best.texts] == ["67", "33", "100", "0"]


def test_confusions_of_segmentation_are_of_pixels_and_their_classes_have_names(tmp_path):
    """Two images: 6 + 5 of 20 pixels of road right, all of sky."""
    write_segmented(tmp_path / "tent", "tent")
    (run,) = map(RunRecord, read_results([tmp_path]))
    assert confusion_of([run]).tolist() == [[11, 9], [0, 20]]
    figure = drawn(tmp_path, "confusion")
    assert figure.axes[0].images[0].get_array().tolist() == pytest.approx(np.array([[55, 45], [0, 100]]))
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["road", "sky"]
    assert drawn(tmp_path, "error_over_stream").axes[0].get_ylabel() == "Mean IoU so far (%)"


def test_methods_without_a_colour_are_grey_and_counted_in_the_legend(home):
    for k in range(8):
        write(home, f"worse{k}", 0, 4)
    figure = drawn(home, "error_over_stream")
    grey = [line for line in figure.axes[0].lines if line.get_color() == "#a9b2bd"]
    assert len(grey) == 4  # 10 besides the baseline, of which 6 have a colour
    assert figure.legends[0].get_texts()[-1].get_text() == "4 more"


def test_every_figure_is_written_in_every_format_and_is_the_same_every_time(home, tmp_path):
    write_bins(home / "tent0", {14: (4, 3.9, 3)})
    save_predictions(home / "dpcore0", [(0, 0), (1, 0)])
    assert [report_figures(read_results([home]), tmp_path / name) for name in "ab"] == [[], []]
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    names = sorted(f"{kind}.{suffix}" for kind in FIGURES for suffix in ("pdf", "png", "svg"))
    assert [str(file) for file in files] == [f"shapes_c-cdc-shapes_vit/{name}" for name in names]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
        if file.suffix == ".pdf":
            content = (tmp_path / "a" / file).read_bytes()
            assert b"/FontFile2" in content  # an embedded TrueType font
            assert b"/Type3" not in content
            assert b"Date" not in content


def test_a_figure_without_data_is_said(home, tmp_path):
    told = report_figures(read_results([home]), tmp_path / "figures")
    assert told == [
        "shapes_c-cdc-shapes_vit has no figure reliability: no finished run has counted its confidences",
        "shapes_c-cdc-shapes_vit has no figure confusion: it needs predictions per image: repeat the runs with "
        "save_predictions=csv",
    ]


@pytest.mark.parametrize("kind", FIGURES)
def test_runs_without_numbers_draw_nothing(kind, tmp_path):
    write_run(tmp_path / "a", result(status="failed", mean_error=None, domain_error={}), [])
    with pytest.raises(NothingToDrawError):
        drawn(tmp_path, kind)
