"""Tables from overrides to cells: the runs that they need, and the displayed numbers."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from tests.helpers.report_runs import result, write_run
from tta_bench.config.words import ConfigError, read_word, read_words
from tta_bench.paper.report import csv_text, heading, markdown_text, print_report, remarks, write_report
from tta_bench.paper.reproduce import PaperCell, Reproduction, TablePlan, distinct, make_plan
from tta_bench.paper.tables import PaperColumn, PaperRow
from tta_bench.report.intervals import Spread


def row(plan, name):
    return next(row for row in plan.table.rows if row.name == name)


def words(plan, name, column=0):
    """The words of the only run of a cell, as a set."""
    (found,) = plan.runs(row(plan, name), plan.table.columns[column])
    return set(map(str, found))


class TestAPlan:
    def test_joins_the_words_of_table_row_and_column(self):
        plan = make_plan("dirichlet_sweep")
        assert words(plan, "SAR", 2) == {
            "dataset=imagenet_c", "model=vit_b16_raw", "method=sar", "setting=cdc", "setting.delta=0.1", "seed=0",
        }  # fmt: skip

    def test_another_data_set_comes_without_the_papers_model(self):
        plan = make_plan("components", ["dataset=shapes_c"])
        assert words(plan, "Tent") == {"dataset=shapes_c", "setting=csc", "method=tent", "seed=0"}

    def test_a_cell_over_alternatives_and_seeds_has_a_run_of_each(self):
        plan = make_plan("memory_management", ["seeds=[0,1]"])
        runs = plan.runs(plan.table.rows[0], plan.table.columns[0])
        assert len(set(runs)) == len(runs) == 20
        assert {next(str(w) for w in run if w.key == "setting.order") for run in runs} == {
            f"setting.order=cotta_{k}" for k in range(10)
        }

    def test_a_methods_word_reaches_its_rows_and_those_of_its_configurations(self):
        plan = make_plan("components", ["dpcore.steps_new=2", "tent.lr=0.5"])
        assert [r.name for r in plan.table.rows if "method.steps_new=2" in words(plan, r.name)] == [
            "Exp-1", "Exp-2", "Exp-3", "DPCore",
        ]  # fmt: skip
        assert [r.name for r in plan.table.rows if "method.lr=0.5" in words(plan, r.name)] == ["Tent"]

    def test_only_a_row_can_be_told_where_its_own_images_are(self):
        plan = make_plan("source_free", ["dataset.source_images=a", "dpcore_source_free.dataset.source_images=b"])
        assert "dataset.source_images=a" in words(plan, "DPCore")
        assert "dataset.source_images=b" in words(plan, "Source-free")
        assert "dataset.source_images=???" in words(
            make_plan("source_free", ["dataset.source_images=a"]), "Source-free"
        )

    def test_methods_choose_rows(self):
        plan = make_plan("components", ["methods=[source,dpcore_exp2]"])
        assert [r.name for r in plan.table.rows] == ["Source", "Exp-2"]

    def test_cells_of_one_configuration_share_a_run(self):
        plan = make_plan("threshold", ["dataset=shapes_c"])
        assert len(list(plan.cells())) == 20
        assert len(distinct(plan.composed().values())) == 10

    @pytest.mark.parametrize(
        ("name", "word", "parts"),
        [
            ("threshold", "method.rho=0.8", ["threshold sets method.rho itself"]),
            ("threshold", "dpcore.rho=0.8", ["threshold sets method.rho itself"]),
            ("components", "setting=cdc", ["components sets setting itself"]),
            ("memory_management", "setting.order=standard", ["sets setting.order itself"]),
            ("components", "seed=1", ["seeds=[1]"]),
            ("components", "method=tent", ["methods=[tent]"]),
            ("components", "methods=[sar]", ["no row for sar", "dpcore_exp1"]),
            ("components", "seeds=[x]", ["integer"]),
            ("components", "words", ["key=value"]),
            ("acdc_csc", "dataset=shapes_c", ["needs classes of pixels", "use for example dataset=streets_c"]),
            ("components", "dataset=streets_c", ["needs classes of images", "use for example dataset=shapes_c"]),
            ("acdc_csc", "setting.rounds=2", ["acdc_csc sets setting.rounds itself"]),
        ],
    )
    def test_a_wrong_word_is_one_sentence(self, name, word, parts):
        with pytest.raises(ConfigError) as caught:
            make_plan(name, [word])
        assert "\n" not in str(caught.value)
        assert [part for part in parts if part not in str(caught.value)] == []


def made(tmp_path, rows, columns, contents, *, dataset="imagenet_c", **changes):
    """A table of these rows and columns; contents are by row and seed."""
    table = replace(make_plan("components").table, rows=rows, columns=columns, **changes)
    plan = TablePlan(table)
    results = {}
    for r in rows:
        for column in columns:
            for run in plan.runs(r, column):
                seed = run[-1].value
                results[run] = contents(r, seed, run)
    return Reproduction(plan, results, dataset, tmp_path / "reproduce")


ROWS = (
    PaperRow("Source", read_words(["method=source"]), {"Mean": 50.0}),
    PaperRow("Tent", read_words(["method=tent"]), {"Mean": 45.0, "Gain": 5.0}),
    PaperRow("Broken", read_words(["method=sar"]), {"Mean": 40.0}),
)
COLUMNS = (
    PaperColumn("Gauss.", domain="gaussian_noise"),
    PaperColumn("Snow", domain="snow"),
    PaperColumn("Mean"),
    PaperColumn("Gain", measure="gain"),
    PaperColumn("Time", measure="time"),
    PaperColumn("Std", statistic="std"),
)


def plain_results(r, seed, run):
    if r.name == "Broken":
        return {"status": "failed", "error": "it [broke]"}
    errors = {"Source": (60.0 + seed, 40.0), "Tent": (50.0, 40.0 + 3 * seed)}[r.name]
    return result(r.method, seed, errors, seconds={"Source": 2.0, "Tent": 8.0}[r.name])


class TestCells:
    @pytest.fixture
    def done(self, tmp_path):
        return made(tmp_path, ROWS, COLUMNS, plain_results, seeds=(0, 2))

    def ours(self, done, name, column):
        return done.cells[name, column].ours

    def test_an_error_is_the_mean_over_seeds(self, done):
        assert self.ours(done, "Tent", "Mean") == Spread(46.5, pytest.approx(math.sqrt(4.5)), 2)
        assert self.ours(done, "Source", "Gauss.") == Spread(61.0, pytest.approx(math.sqrt(2)), 2)

    def test_a_gain_is_paired_by_seed(self, done):
        assert self.ours(done, "Tent", "Gain") == Spread(4.0, pytest.approx(math.sqrt(2)), 2)  # 50 - 45 and 51 - 48

    def test_time_is_relative_to_tent(self, done):
        assert self.ours(done, "Source", "Time") == Spread(0.25, 0.0, 2)

    def test_time_on_another_device_is_unknown(self, tmp_path):
        def contents(r, seed, run):
            return {**plain_results(r, seed, run), "device": r.name}

        done = made(tmp_path, ROWS[:2], COLUMNS, contents)
        assert self.ours(done, "Source", "Time") is None
        assert self.ours(done, "Tent", "Time") == Spread(1.0, None, 1)

    def test_a_deviation_is_a_number_of_its_own(self, done):
        assert self.ours(done, "Tent", "Std") == Spread(pytest.approx(math.sqrt(4.5)), None, 2)

    def test_a_failed_run_fails_its_cells_only(self, done):
        assert done.cells["Broken", "Mean"] == PaperCell(None, 40.0, "it [broke]")
        assert self.ours(done, "Tent", "Mean") is not None
        assert list(done.failures.values()) == ["it [broke]"] * 2

    def test_domains_that_the_data_do_not_have_are_left_out(self, done):
        assert [column.name for column in done.columns] == ["Gauss.", "Mean", "Gain", "Time", "Std"]

    def test_a_gain_without_the_row_of_source_is_unknown(self, tmp_path):
        assert self.ours(made(tmp_path, ROWS[1:2], COLUMNS, plain_results), "Tent", "Gain") is None


class TestCurves:
    """Two domains of two batches, of which the first comes back in the fifth."""

    DOMAINS = ("gaussian_noise", "gaussian_noise", "fog", "fog", "gaussian_noise")
    ROWS = (
        PaperRow("Coreset", read_words(["method=dpcore"]), {}, "coreset_size"),
        PaperRow("Raw", read_words(["method=dpcore"]), {}, "distance_raw"),
        PaperRow("Prompted", read_words(["method=dpcore"]), {}, "distance_weighted"),
    )

    def test_a_coreset_has_its_last_size_in_a_domain_and_a_distance_is_a_mean(self, tmp_path):
        numbers = {
            "coreset_size": [1, 1, 2, 3, 4],
            "distance_raw": [5.0, 7.0, 8.0, 10.0, 9.0],
            "distance_weighted": [math.nan, 4.0, 3.0, 2.0, 2.0],
        }
        batches = [{domain: (4, 1)} for domain in self.DOMAINS]
        folder = write_run(tmp_path / "run", result("dpcore", errors=(25.0, 25.0)), batches, **numbers)
        columns = (PaperColumn("Gauss.", domain="gaussian_noise"), PaperColumn("Fog", domain="fog"), PaperColumn("End"))
        content = {**result("dpcore", errors=(25.0, 25.0)), "folder": str(folder)}
        done = made(tmp_path, self.ROWS, columns, lambda *_: content, draw="curves")
        shown = {name: [done.cells[name, c.name].ours.mean for c in columns] for name in ("Coreset", "Raw", "Prompted")}
        assert shown == {"Coreset": [4, 3, 4], "Raw": [7.0, 9.0, 7.8], "Prompted": [3.0, 2.5, 2.75]}
        assert all(file.endswith((".md", ".csv", ".png")) for file in write_report(done))


def printed(done, width=200):
    console = Console(width=width, record=True, file=io.StringIO())
    print_report(done, console)
    return console.export_text()


class TestReports:
    @pytest.fixture(params=["imagenet_c", "shapes_c"])
    def done(self, request, tmp_path):
        return made(tmp_path, ROWS, COLUMNS, plain_results, dataset=request.param)

    def test_the_difference_is_shown_on_the_papers_data_only(self, done):
        text = markdown_text(done)
        assert "| Tent | ours | 50.0 | 45.0 | +5.0 | 1.0 | – |" in text
        assert "|  | paper | – | 45.0 | +5.0 | – | – |" in text
        assert ("|  | difference | – | 0.0 | +0.0 | – | – |" in text) == (not done.is_substitute)
        assert ("difference" in printed(done)) == (not done.is_substitute)
        assert ("a substitute for imagenet_c" in heading(done)) == done.is_substitute

    def test_csv_has_a_line_per_cell(self, done):
        lines = list(csv.DictReader(io.StringIO(csv_text(done))))
        assert len(lines) == len(done.cells) == 15
        (line,) = [line for line in lines if (line["row"], line["column"]) == ("Source", "Mean")]
        assert (line["ours"], line["paper"]) == ("50.0", "50.0")
        assert line["difference"] == ("" if done.is_substitute else "0.0")
        assert {line["failed"] for line in lines if line["row"] == "Broken"} == {"it [broke]"}

    def test_a_failure_is_shown_and_explained(self, done):
        assert "| Broken | ours | failed |" in markdown_text(done)
        assert "it [broke]" in printed(done)

    def test_no_column_is_lost_in_a_narrow_terminal(self, done):
        text = printed(done, width=45)
        assert max(len(line) for line in text.splitlines() if line[:1] in "┃│┡├") <= 45
        heads = [cell.strip() for line in text.splitlines() if "┃" in line for cell in line.split("┃")]
        assert [head for head in heads if head] == ["Gauss.", "Mean", "Gain", "Time", "Std"]

    def test_all_three_files_are_written(self, done):
        files = write_report(done)
        assert [file.rpartition(".")[2] for file in files] == ["md", "csv", "png"]
        assert (done.folder / "components.png").stat().st_size > 1000


def test_an_oracle_is_called_one(tmp_path):
    rows = (PaperRow("Known", read_words(["method=dpcore", "reset=domain"])),)
    done = made(tmp_path, rows, COLUMNS[2:3], lambda *_: result())
    assert "Known: uses an oracle for the domain boundaries." in remarks(done)


def test_lines_are_drawn_from_a_table_with_unknown_cells(tmp_path):
    columns = (
        PaperColumn("1", read_words(["setting.batch_size=1"])),
        PaperColumn("2", read_words(["setting.batch_size=2"])),
        PaperColumn("Average"),
    )

    def contents(r, seed, run):
        single = read_word("setting.batch_size=1") in run
        return {"status": "failed", "error": "no"} if single else plain_results(r, seed, run)

    done = made(tmp_path, ROWS[:2], columns, contents, draw="lines", x="batch size")
    assert done.cells["Tent", "1"].failed == "no"
    write_report(done)
    assert (done.folder / "components.png").stat().st_size > 1000
