"""Markdown, LaTeX and CSV: numbers by hand, structure, and names that need escaping."""

from __future__ import annotations

import csv
import html
import io
import re
import shutil
import subprocess

import pytest

from tests.helpers.report_runs import HOSTILE, result, write_run
from tta_bench.report import FORMATS, format_of, report_text
from tta_bench.report.corruptions import CORRUPTION_GROUPS
from tta_bench.results.run_folder import read_results
from tta_bench.streams.orders import STANDARD_ORDER

THREE = [
    *(result("source", seed=s, errors=(60.0, 40.0)) for s in (0, 1)),
    *(result("tent", seed=s, errors=(50.0 + 2 * s, 41.0)) for s in (0, 1)),
    *(result("dpcore", seed=s, errors=(30.0, 20.0)) for s in (0, 1)),
]


def all_15(method, error):
    return result(method, domains=list(STANDARD_ORDER), domain_error=dict.fromkeys(reversed(STANDARD_ORDER), error))


def test_the_groups_hold_the_15_corruptions_in_their_order():
    assert tuple(name for group in CORRUPTION_GROUPS.values() for name in group) == STANDARD_ORDER


class TestMarkdown:
    def test_has_means_deviations_marks_and_gains(self):
        lines = report_text(THREE, "markdown").splitlines()
        assert "| Method | Gauss. | Fog | Mean error | Gain over source (95 % interval) |" in lines
        assert "| source | 60.0 ± 0.0 | *40.0* ± 0.0 | 50.0 ± 0.0 | +0.0 |" in lines
        # Gains 4.5 and 3.5: mean 4, half width 12.706 * 0.7071 / sqrt(2) = 6.35.
        assert "| tent | *51.0* ± 1.4 | 41.0 ± 0.0 | *46.0* ± 0.7 | +4.0 (-2.4 to +10.4) |" in lines
        assert "| dpcore | **30.0** ± 0.0 | **20.0** ± 0.0 | **25.0** ± 0.0 | +25.0 (+25.0 to +25.0) |" in lines

    def test_each_table_is_rectangular_also_with_hostile_names(self):
        text = report_text([*THREE, result(HOSTILE, status="failed", domain_error={})], "markdown")
        tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
        assert len(tables) == 2
        for table in tables:
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
        assert "<script" not in text

    def test_what_tells_tables_apart_is_said(self):
        text = report_text([result(), result(config__setting__delta=0.1)], "markdown")
        assert "Only this table: setting.delta=0.1" in text


class TestLatex:
    def test_has_the_papers_columns_under_its_group_heads(self):
        lines = report_text([all_15("source", 50.0), all_15("dpcore", 40.0)], "latex").splitlines()
        heads = r"Method & Gauss. & Shot & Impulse & Defocus & Glass & Motion & Zoom & Snow & Frost & Fog & Bright & "
        heads += r"Contrast & Elastic & Pixel & JPEG & Mean$\downarrow$ & Gain$\uparrow$ \\"
        groups = r" & \multicolumn{3}{c}{Noise} & \multicolumn{4}{c}{Blur} & \multicolumn{4}{c}{Weather} & "
        groups += r"\multicolumn{4}{c}{Digital} & & \\"
        assert heads in lines
        assert groups in lines
        assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-8} \cmidrule(lr){9-12} \cmidrule(lr){13-16}" in lines

    def test_the_best_is_bold_and_the_second_underlined(self):
        text = report_text(THREE, "latex")
        assert r"DPCore & \textbf{30.0} & \textbf{20.0} & \textbf{25.0}{\scriptsize$\pm$0.0} & $+25.0$ \\" in text
        assert r"Tent & \underline{51.0} & 41.0 & \underline{46.0}{\scriptsize$\pm$0.7} & $+4.0$ \\" in text

    def test_the_baseline_stands_first(self):
        text = report_text([all_15("dpcore", 40.0), all_15("source", 50.0)], "latex")
        assert text.index("\nSource &") < text.index("\nDPCore &")

    def test_deviations_stand_in_every_cell_on_request(self):
        row = r"Tent & \underline{51.0}{\scriptsize$\pm$1.4} & 41.0{\scriptsize$\pm$0.0} & \underline{46.0}{\scriptsize"
        assert row in report_text(THREE, "latex", deviations=True)
        with pytest.raises(ValueError, match=r"^deviations can be chosen for LaTeX only, the format is csv: drop"):
            report_text(THREE, "csv", deviations=True)

    def test_the_caption_is_a_sentence_and_the_protocol_a_footnote(self):
        text = report_text(THREE, "latex")
        told = (
            r"on Shapes-C under CDC with ViT, mean and standard deviation over 2 streams.\textsuperscript{*} The gain"
        )
        assert rf"\caption{{Classification error (\%, lower is better) {told}" in text
        note = text[text.index(r"\end{tabular}") :]
        assert r"\textsuperscript{*}Data set: shapes\_c, clean procedural shapes, num images 10, severity 5. " in note
        assert "Batch size: 4. Streams: seed 0: 000000000000, seed 1: 000000000000. Model: shapes" in note

    def test_every_table_has_a_label_of_its_own(self):
        text = report_text([*THREE, result(config__setting__delta=0.1), result(setting="csc")], "latex")
        labels = [line for line in text.splitlines() if line.startswith(r"\label")]
        names = ("shapes_c-cdc-shapes_vit-1", "shapes_c-cdc-shapes_vit-2", "shapes_c-csc-shapes_vit")
        assert labels == [rf"\label{{tab:{name}}}" for name in names]

    def test_every_row_has_a_cell_per_column_and_every_brace_its_partner(self):
        text = report_text([*THREE, result(HOSTILE, setting="csc"), result("x", dataset=HOSTILE)], "latex")
        for table in text.split(r"\begin{table*}")[1:]:
            (spec,) = re.findall(r"\\begin\{tabular\}\{(l[lc]+)\}", table)
            rows = [line for line in table.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
            assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(spec)}
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")
        assert text.count(r"\begin{") == text.count(r"\end{")
        assert r"\input" not in text

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex on the PATH")
    def test_it_compiles(self, tmp_path):
        table = report_text([*THREE, result(HOSTILE, setting="csc", errors=(1.0,)), all_15("tent", 9.0)], "latex")
        document = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs,graphicx}"
        (tmp_path / "a.tex").write_text(f"{document}\\begin{{document}}\n{table}\\end{{document}}\n", encoding="utf-8")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        assert (tmp_path / "a.pdf").stat().st_size > 1000


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for seed, wrong in ((0, 2), (1, 4)):
        batches = [{"fog": (4, wrong)}, {"snow": (4, 0)}, {"fog": (4, 4)}]
        write_run(home / f"tent{seed}", result("tent", seed, source_mean_error=60.0), batches)
    write_run(home / "failed", result(HOSTILE, status="failed"), [], planned=batches)
    return list(csv.DictReader(io.StringIO(report_text(read_results([home]), "csv"))))


class TestCsv:
    def test_has_a_line_per_number_of_each_run(self, lines):
        found = {(r["seed"], r["domain"]): r["value"] for r in lines if r["measure"] == "domain_error" and r["seed"]}
        assert found == {("0", "fog"): "75.0", ("0", "snow"): "0.0", ("1", "fog"): "100.0", ("1", "snow"): "0.0"}

    def test_has_the_error_of_every_visit(self, lines):
        found = [(r["domain"], r["visit"], r["value"]) for r in lines if r["measure"] == "visit_error"]
        assert found[:3] == [("fog", "1", "50.0"), ("snow", "1", "0.0"), ("fog", "2", "100.0")]

    def test_has_statistics_over_the_streams(self, lines):
        found = {r["statistic"]: float(r["value"]) for r in lines if r["measure"] == "mean_error" and not r["seed"]}
        assert found == pytest.approx({"mean": 43.75, "std": 8.838835, "n": 2})
        gain = {r["statistic"]: float(r["value"]) for r in lines if r["measure"] == "gain over source"}
        assert gain["mean"] == 16.25
        assert gain["interval_high"] - gain["mean"] == pytest.approx(12.7062 * 8.838835 / 2**0.5, rel=1e-4)

    def test_a_failed_run_has_a_line_and_no_number(self, lines):
        (failed,) = [r for r in lines if r["method"] == HOSTILE]
        assert (failed["status"], failed["value"], failed["measure"]) == ("failed", "", "")


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_what_runs_noticed_is_said_once(form):
    """A sentence of two runs, one of one run, and one with markup."""
    shared, own = "labels follow the names of folders", "the error of tent is 80.0 %"
    runs = [result("source", notices=[shared]), result("tent", notices=[shared, own, HOSTILE])]
    written = report_text(runs, form)
    text = html.unescape(written)
    assert text.count(shared) == text.count(own) == 1
    assert "Note:" in text
    assert form == "terminal" or "<script>alert" not in written
    assert "Note:" not in report_text(THREE, form)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_takes_runs_without_numbers(form):
    unfinished = [result(status=s, mean_error=None, domain_error={}) for s in ("failed", "running")]
    assert "tent" in report_text(unfinished, form).lower()


def test_the_format_follows_from_the_files_ending(tmp_path):
    endings = {".txt": "terminal", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".HTML": "html"}
    assert {end: format_of(tmp_path / f"a{end}") for end in endings} == endings
    with pytest.raises(ValueError, match=r"has no known suffix \(\.txt, .*\): rename it, or set --format$"):
        format_of(tmp_path / "a.pdf")
    with pytest.raises(ValueError, match=r"^there is no format pdf: choose one of terminal, "):
        report_text(THREE, "pdf")
