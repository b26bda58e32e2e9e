"""``tta-bench report`` in all formats, and its page in a browser."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.helpers import browser
from tests.helpers.report_runs import HOSTILE, result, write_run
from tta_bench.cli.app import app

STREAM = ["fog"] * 6 + ["snow"] * 6 + ["fog"] * 6
WRONG = {"source": 3, "tent": 2, "dpcore": 1, "a_method_with_a_rather_long_name_of_its_own_and_more": 4}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for method, wrong in WRONG.items():
        for seed in (0, 1):
            batches = [{domain: (4, wrong if t else 4 * seed)} for t, domain in enumerate(STREAM)]
            need = {"needs_source": "unlabeled images"} if method == "dpcore" else {}
            write_run(home / f"a {method} {seed}", result(method, seed, **need), batches)
    write_run(home / "failed", result(HOSTILE, status="failed", error=HOSTILE), [{"fog": (4, 1)}] * 3, planned=batches)
    write_run(home / "running", result("sar", status="running"), [{"fog": (4, 1)}] * 5, planned=batches)
    write_run(home / "z other", result("tent", setting="csc"), [{"fog": (4, 1)}])
    return home


def report(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", *map(str, words)])


@pytest.mark.parametrize(
    ("ending", "start"),
    [(".md", "## shapes"), (".tex", "% Needs"), (".csv", "group,dataset"), (".html", "<!doctype"), (".txt", " ")],
)
def test_a_file_is_written_in_the_format_of_its_name(home, tmp_path, ending, start):
    done = report(home, "--output", tmp_path / f"a{ending}")
    assert (done.exit_code, done.output) == (0, f"11 runs in {tmp_path}/a{ending}\n")
    assert (tmp_path / f"a{ending}").read_text(encoding="utf-8").startswith(start)


def test_without_a_file_it_is_printed(home):
    lines = list(csv.DictReader(report(home, "--format", "csv").output.splitlines()))
    assert {line["method"] for line in lines} == {*WRONG, HOSTILE, "sar"}


def test_the_baseline_is_a_matter_of_choice(home):
    assert "gain over tent" in report(home, "--baseline", "tent").output
    wrong = report(home, "--baseline", "tant")
    assert wrong.exit_code == 2
    assert "there is no baseline tant: choose one of " in wrong.output


def test_figures_are_drawn_beside_the_tables(home, tmp_path):
    done = report(home, "--output", tmp_path / "a.tex", "--deviations", "--figures", tmp_path / "figures")
    assert done.exit_code == 0
    assert f"Figures in {tmp_path}/figures" in done.output
    assert "shapes_c-csc-shapes_vit has no figure coreset_growth: no finished run has the curve" in done.output
    drawn = {path.relative_to(tmp_path / "figures").as_posix() for path in (tmp_path / "figures").rglob("*.pdf")}
    kinds = ("cost_against_error", "error_by_domain", "error_over_stream")
    assert drawn == {f"shapes_c-{setting}-shapes_vit/{kind}.pdf" for setting in ("cdc", "csc") for kind in kinds}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--deviations"], "deviations can be chosen for LaTeX only, the format is terminal: drop --deviations"),
        (["--format", "pdf"], "there is no format pdf"),
        (["--output", "report.pdf"], "report.pdf has no known suffix"),
        (["--output", "nowhere/report.md"], "cannot write nowhere/report.md"),
    ],
)
def test_a_mistake_is_one_sentence(home, words, sentence):
    done = report(home, *words)
    assert done.exit_code == 2
    assert sentence in done.output


def test_a_page_needs_neither_torch_nor_matplotlib(home, tmp_path):
    code = (
        "import sys\nfrom tta_bench.cli import app\n"
        f"app(['report', {str(home)!r}, '--output', {str(tmp_path / 'a.html')!r}], standalone_mode=False)\n"
        "print({'torch', 'lightning', 'wandb', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


LABELS = """
return [...document.querySelectorAll('table[data-section="g1"] tbody tr')].filter((row) => !row.hidden)
    .map((row) => row.cells[0].dataset.value)
"""
MARKS = """
return [...document.querySelectorAll('.results')].map((table) => [...table.querySelectorAll('tbody td')]
    .map((cell) => ['best', 'second'].filter((name) => cell.classList.contains(name)).join()))
"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def chromium(home, tmp_path_factory):
    assert report(home, "--output", home / "report.html").exit_code == 0
    with browser.Browser(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.mark.skipif(browser.missing() != "", reason=browser.missing() or "there is a browser")
class TestInABrowser:
    @pytest.fixture
    def page(self, home, chromium):
        chromium.resize(1280, 900)
        chromium.open(home / "report.html")
        yield chromium
        assert chromium.messages() == []  # nothing went wrong in the console, whatever the test did

    def head(self, title):
        heads = ["Method", "Mean error", "Gain over source", "Fog", "Snow"]
        place = "tr:nth-child(1) th" if title == "Method" else f"tr:nth-child(2) th:nth-child({heads.index(title)})"
        return f'table[data-section="g1"] thead {place} button'

    def test_a_click_sorts_and_another_turns_the_order(self, page):
        labels = page.run(LABELS)
        assert labels[:3] == ["dpcore", "tent", "source"]  # best first
        page.click(self.head("Mean error"))
        assert page.run(LABELS) == labels
        page.click(self.head("Mean error"))
        turned = page.run(LABELS)
        assert turned[:4] == labels[:4][::-1]
        assert set(turned[4:]) == {HOSTILE, "sar"}  # without a number: last, either way
        page.click(self.head("Method"))
        assert page.run(LABELS) == [HOSTILE, *sorted(set(labels) - {HOSTILE})]
        sorts = "return [...document.querySelectorAll('table[data-section=g1] th[aria-sort]')].map((h) => h.ariaSort)"
        assert page.run(sorts).count("ascending") == 1

    def test_the_gain_is_sorted_from_the_largest(self, page):
        page.click(self.head("Gain over source"))
        assert page.run(LABELS)[0] == "dpcore"

    def test_the_filter_hides_rows_and_their_curves_and_moves_no_mark(self, page):
        before = page.run(MARKS)
        page.type("#filter", "tent, source")
        assert page.run(LABELS) == ["tent", "source"]
        shown = "[...document.querySelectorAll('#g1 polyline')].filter((c) => c.getClientRects().length)"
        assert page.run(f"return new Set({shown}.map((c) => c.dataset.entry)).size") == 2
        assert page.run(MARKS) == before
        assert page.run("return document.getElementById('count').textContent") == "3 of 7 rows shown"
        page.type("#filter", " ")
        assert len(page.run(LABELS)) == 6

    def test_methods_can_be_chosen_by_what_they_see_of_the_source(self, page):
        page.run(
            "const s = document.getElementById('need'); s.value = 'unlabeled images';"
            "s.dispatchEvent(new Event('change'))"
        )
        assert page.run(LABELS) == ["dpcore"]

    def test_columns_can_be_hidden(self, page):
        seen = "return [...document.querySelectorAll('#g1 .p-domains')].filter((c) => c.getClientRects().length).length"
        assert page.run(seen) > 0
        page.click('[data-part="domains"]')
        assert page.run(seen) == 0

    def test_everything_can_be_reached_and_used_by_keyboard(self, page):
        reached = []
        for _ in range(40):
            page.press("Tab")
            reached.append(page.run("const e = document.activeElement; return e.id || e.className || e.tagName"))
        assert {"filter", "need", "scroll", "sort", "pin"} <= set(reached)
        page.run("document.querySelector('#g1 button.pin').focus()")
        page.press("Space")
        assert page.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
        assert page.run("return document.querySelectorAll('#g1 polyline.faded').length") > 0
        page.press("Enter")
        assert page.run("return document.querySelectorAll('.faded').length") == 0
        page.run(f"document.querySelector('{self.head('Mean error')}').focus()")
        page.press("Enter")
        assert page.run("return document.activeElement.closest('th').ariaSort") == "ascending"

    @pytest.mark.parametrize("width", [360, 768, 1920])
    def test_only_tables_and_figures_scroll_sideways(self, page, width):
        page.resize(width, 800)
        assert page.run(OVERFLOW) <= 0

    @pytest.mark.parametrize("width", [1400, 800, 390])
    def test_figures_use_the_width_and_fit(self, page, width):
        page.resize(width, 900)
        drawings = "[...document.querySelectorAll('#g1 .drawing')].filter((d) => d.getClientRects().length)"
        shares = page.run(f"return {drawings}.map((d) => d.clientWidth / document.getElementById('g1').clientWidth)")
        assert len(shares) >= 3
        assert min(shares) > 0.85
        beside, above = (
            page.run(
                f"return [...document.querySelectorAll('#g1 {what}')].filter((e) => e.getClientRects().length).length"
            )
            for what in ("svg .end", ".names li")
        )
        assert (beside > 0, above > 0) == (width > 640, width <= 640)
        size = "const s = document.querySelector('#g1 svg'), t = s.querySelector('text.title').getBoundingClientRect();"
        assert page.run(f"{size} return t.height") >= 8.5  # pixels, legible

    def test_a_table_that_goes_on_says_so_and_keeps_its_first_column(self, page):
        page.resize(390, 844)
        box = "document.querySelector('#g1 .wide')"
        assert page.run(f"return getComputedStyle({box}.querySelector('.hint')).display") == "block"
        place = f"{box}.querySelector('tbody th').getBoundingClientRect().left"
        before = page.run(f"return {place}")
        page.run(f"{box}.firstElementChild.scrollLeft = 1e6")
        page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.run(f"return {place}") == before
        assert page.run(f"return getComputedStyle({box}.querySelector('.hint')).display") == "none"
        assert page.run(
            "return [...document.querySelectorAll('.wide')].every((e) => e.querySelector('.scroll > table'))"
        )

    def test_it_follows_the_preferred_colours(self, page):
        colours = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        page.prefer("light")
        light = page.run(colours)
        page.prefer("dark")
        assert page.run(colours) == ["rgb(18, 22, 28)", "rgb(231, 235, 240)"]
        assert light == ["rgb(255, 255, 255)", "rgb(23, 32, 43)"]
