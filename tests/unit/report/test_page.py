"""The page without a browser: valid, safe, complete, offline."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.helpers.report_runs import HOSTILE, result, write_many, write_run
from tta_bench.report import report_text
from tta_bench.report.groups import group_runs
from tta_bench.report.looks import looks_of
from tta_bench.report.runs import RunRecord
from tta_bench.report.svg import Axis, axis_over, spaced
from tta_bench.report.trace import MAX_POINTS
from tta_bench.results.run_folder import read_results

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Every element with its attributes and text; fails on a tag without its partner."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[dict] = []
        self.elements: list[dict] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find(self, tag, **attrs):
        return [e for e in self.elements if e["tag"] == tag and all(e.get(k) == v for k, v in attrs.items())]

    def rows(self, section="g1"):
        """Of the table of results, by label: each row's cells."""
        start = self.elements.index(self.find("table", **{"data-section": section})[0])
        found, cells = {}, []
        for element in self.elements[start:]:
            if element["tag"] == "table" and element is not self.elements[start]:
                break
            if element["tag"] == "th" and element.get("scope") == "row" and "data-value" in element:
                cells = found[element["data-value"]] = []
            elif element["tag"] == "td" and element.get("class", "").startswith("p-"):
                cells.append(element)
        return found


def folder(home, name, content, batches, **diagnostics):
    return write_run(home / name, content, batches, **diagnostics)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Four methods with two seeds, another protocol, a failed, a running and a hostile run."""
    home = tmp_path_factory.mktemp("my runs")
    stream = ["fog"] * 6 + ["snow"] * 6 + ["fog"] * 6
    for method, wrong in (("source", 3), ("tent", 2), ("dpcore", 1), ("worse", 4)):
        for seed in (0, 1):
            batches = [{domain: (4, wrong if t else 4 * seed)} for t, domain in enumerate(stream)]
            own = {"coreset_size": [float(t) for t in range(18)], "distance_raw": [1.0] * 18} if wrong == 1 else {}
            need = {"needs_source": "unlabeled images"} if wrong == 1 else {}
            folder(home, f"{method} {seed}", result(method, seed, **need), batches, **own)
    early = {"planned": batches}
    folder(home, "z csc", result("tent", setting="csc"), [{"fog": (4, 1)}])
    folder(
        home, "failed", result("eata", status="failed", error=f"ValueError: {HOSTILE}"), [{"fog": (4, 1)}] * 3, **early
    )
    folder(home, "running", result("sar", status="running"), [{"fog": (4, 1)}] * 5, **early)
    again = "run the same command again to resume at batch 3"
    folder(home, "interrupted", result("cotta", status="interrupted", error=again), [{"fog": (4, 1)}] * 3, **early)
    folder(home, "hostile", result(HOSTILE, domains=[HOSTILE]), [{HOSTILE: (4, 1)}] * 3)
    return home


@pytest.fixture(scope="module")
def text(home):
    return report_text(read_results([home]), "html", place=home)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_every_tag_is_closed_and_every_id_is_there_once(page):
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(page.elements) > 500
    assert len(ids) == len(set(ids))
    assert {e["href"][1:] for e in page.find("a") if e["href"].startswith("#")} <= set(ids)


def test_hostile_names_are_text(page, text):
    assert any(HOSTILE in page.rows(f"g{k}") for k in (1, 2, 3))
    assert [s["text"].strip()[:12] for s in page.find("script")] == ['"use strict"']
    assert "<script>alert" not in text
    assert not [e for e in page.elements if any(name.startswith("on") for name in e)]


def test_it_is_one_file_that_loads_nothing(page, text):
    assert not [e for e in page.elements if "src" in e]
    assert [e["href"] for e in page.find("link")] == ["data:,"]
    policy = page.find("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"https?://|@import|url\(", text)


def test_cells_show_the_numbers_marks_and_spread(page):
    rows = page.rows()
    # dpcore: seed 0 has 17 of 72 wrong, seed 1 has 21; of fog 11 and 15 of 48, of snow 6 of 24 both times.
    mean = (100 * (11 + 15) / 2 / 48 + 25) / 2
    assert float(rows["dpcore"][0]["data-value"]) == pytest.approx(mean)
    assert rows["dpcore"][0]["text"] == f"{mean:.1f}± 2.9"
    assert ["best" in row[0]["class"] for row in (rows["dpcore"], rows["tent"], rows["source"])] == [True, False, False]
    assert "second" in rows["tent"][0]["class"]
    # Gains 24 and 24 points: fog (33 - 11) / 48 and (37 - 15) / 48, snow 50 points.
    assert rows["dpcore"][1]["text"] == "+47.9[+47.9, +47.9]"


def test_rows_say_what_is_wrong_with_them(page, text):
    assert page.rows()["eata"][0]["text"] == "–"
    assert {"1 failed", "1 running", "1 interrupted"} <= {e["text"] for e in page.find("small", **{"class": "note"})}
    states = {e["text"] for e in page.find("span") if e.get("class", "").startswith("status")}
    assert {"done", "failed after 3 of 18 batches", "running after 5 of 18 batches"} <= states
    assert any(HOSTILE in e["text"] for e in page.find("li"))
    assert "done, 1 failed, 1 interrupted, 1 running." in page.find("p", **{"class": "lead"})[0]["text"]


def test_an_interrupted_run_is_told_from_a_failed_one_with_its_remedy(page, text):
    (told,) = [e["text"] for e in page.find("li") if e.get("data-entry") and e["text"].startswith("cotta, ")]
    assert told.endswith("interrupted after 3 of 18 batches run the same command again to resume at batch 3")
    colours = dict(re.findall(r"^\.(failed|[a-z, .]*interrupted) \{ color: var\(--(\w+)\)", text, re.M))
    assert colours["failed"] != colours["running, .interrupted"]


def test_every_protocol_has_a_table_and_the_page_says_what_differs(page):
    sections = page.find("section")
    assert len(sections) == 3  # cdc, csc, and the hostile run's own domains
    assert "Why 3 tables" in page.find("summary")[0]["text"]
    heads = [e["text"] for e in page.find("th", scope="row")]
    assert {"setting", "dataset.severity"} & set(heads) == {"setting"}


def test_the_contents_begin_with_what_tells_tables_apart():
    many = [f"domain{k}" for k in range(30)]
    runs = [
        *(result(config__setting__delta=delta) for delta in (0.1, 1.0)),
        *(result(setting="csc", weights_sha256=digit * 64) for digit in "ab"),
        result(setting="ptta", domains=many, weights_sha256="c" * 64, config__setting__delta=3.0),
        result(setting="ptta"),
        result(setting="mixed"),
    ]
    page = Page(report_text(runs, "html"))
    (contents,) = page.find("ol")
    links = [" ".join(e["text"].split()) for e in page.find("a") if e.get("href", "").startswith("#g")]
    same = "shapes_c · {} · shapes_vit"
    assert links[: len(page.find("section"))] == [
        f"delta 0.1 {same.format('cdc')}",
        f"delta 1 {same.format('cdc')}",
        f"weights sha256 {'a' * 18}…{'a' * 12} {same.format('csc')}",
        f"weights sha256 {'b' * 18}…{'b' * 12} {same.format('csc')}",
        f"delta 3 {same.format('ptta')}",  # its domains and weights follow
        f"delta 1 {same.format('ptta')}",
        same.format("mixed"),
    ]
    assert "1 method, seed 0" in contents["text"]


def test_many_runs_without_numbers_are_folded():
    failed = [result(f"m{k}", status="failed", error="it broke") for k in range(7)]
    for number, is_open in ((6, True), (7, False)):
        (box,) = Page(report_text(failed[:number], "html")).find("details", **{"class": "trouble"})
        assert ("open" in box) == is_open
        assert box["text"].split("or")[0].strip() == f"{number} runs without numbers,"
        assert box["text"].count("it broke") == number


def test_links_lead_to_the_runs_files(page, home):
    links = [unquote(e["href"]) for e in page.find("a") if not e["href"].startswith("#")]
    assert len(links) == 4 * 13
    assert all((home / link).is_file() for link in links)
    assert not any(Path(link).is_absolute() for link in links)


def test_figures_have_axes_with_units_and_names_beside_the_curves(page):
    figures = {e["aria-label"] for e in page.find("svg")}
    assert {"which domain arrives in which batch", "mean error against cost"} <= figures
    texts = {e["text"] for e in page.find("text")}
    assert {"batch of the stream (4 samples each)", "error so far (%)", "mean error (%)"} <= texts
    assert {
        "elements in the coreset",
        "distance of feature statistics",
        "forward + backward passes per sample",
    } <= texts
    assert {"source", "tent", "dpcore", "dpcore raw", "sar (running)"} <= texts


@pytest.mark.parametrize(
    ("sizes", "label"), [((16, 16), "16 samples each"), ((16, 5), "up to 16 samples each"), ((1,), "1 sample each")]
)
def test_the_axis_counts_the_samples_that_the_batches_held(tmp_path, sizes, label):
    """Whatever ``setting.batch_size`` says."""
    folder(tmp_path, "a", result(), [{"fog": (n, 1)} for n in sizes])
    assert f"batch of the stream ({label})" in report_text(read_results([tmp_path]), "html")


def test_errors_per_visit_are_shown_where_domains_return(page):
    (table,) = [e for e in page.find("table", **{"class": "plain numbers"}) if "visit 2" in e["text"]]
    # tent: half wrong but for the first batch, which has 0 of 4 wrong with seed 0 and 4 of 4 with seed 1.
    assert re.search(r"tent\s*50\.0\s*50\.0", table["text"])


def test_the_page_is_the_same_every_time(home, text):
    assert report_text(read_results([home]), "html", place=home) == text


def test_two_hundred_runs_make_one_page(tmp_path):
    write_many(tmp_path, entries=40, seeds=5)
    text = report_text(read_results([tmp_path]), "html", place=tmp_path)
    page = Page(text)
    assert len(page.rows()) == 40
    assert len([e for e in page.find("a") if e["href"].endswith("result.json")]) == 200
    assert len(text) < 5e6
    named = [e["text"] for e in page.find("g") if e.get("class", "").startswith("end")]
    assert len(set(named)) == 7  # six and the baseline; the others are grey


def test_colours_are_given_once_per_group_and_kept_from_group_to_group():
    runs = [result(f"m{k}", errors=(10.0 + k, 20.0)) for k in range(8)]
    runs += [result(f"m{k}", setting="csc", errors=(20.0 - k, 20.0)) for k in range(8)]
    groups = group_runs(map(RunRecord, [*runs, result("source", errors=(90.0, 90.0))]))
    looks = looks_of(groups)
    for group in groups:
        colours = [looks[e].colour for e in group.entries if looks[e].colour not in ("other", "base")]
        assert len(colours) == len(set(colours)) == 6
    kept = [[looks[e].colour for e in group.entries if e.label in ("m2", "m3", "m4", "m5")] for group in groups]
    assert kept[0] == kept[1]
    assert [looks[e].colour for e in groups[0].entries if e.label == "source"] == ["base"]


def test_a_long_stream_is_drawn_with_few_points(tmp_path):
    steps = 10 * MAX_POINTS + 1
    folder(tmp_path, "a", result(), [{"fog" if t % 2 else "snow": (1, t % 2)} for t in range(steps)])
    (run,) = map(RunRecord, read_results([tmp_path]))
    points = run.trace.curves["running_error"]
    assert len(points) <= MAX_POINTS
    assert points[-1] == (steps, pytest.approx(50.0, abs=0.1))
    assert len(report_text([run.result], "html")) < 300_000


@pytest.mark.parametrize("damage", ["half a row", "no file", "another file"])
def test_batches_that_cannot_be_read_leave_the_result(tmp_path, damage):
    path = folder(tmp_path, "a", result(), [{"fog": (4, 1)}] * 3) / "batches.csv"
    text = path.read_text()
    if damage == "half a row":
        path.write_text(text[:-5])
    elif damage == "no file":
        path.unlink()
    else:
        path.write_text("a,b\n1,2\n")
    (run,) = map(RunRecord, read_results([tmp_path]))
    assert run.trace.steps == (2 if damage == "half a row" else 0)
    text = report_text([run.result], "html")
    assert "25.0" in text
    assert ("batches.csv cannot be read: it has no column" in text) == (damage == "another file")


def test_an_axis_takes_equal_values():
    axis = axis_over("x", [5.0, 5.0])
    assert axis.low < 5 < axis.high
    assert axis_over("x", [0.0]).high > 0
    assert Axis("x", 1, 100, log=True).share(10) == pytest.approx(0.5)


def test_labels_that_do_not_fit_keep_their_order():
    assert spaced([5.0, 5.0, 5.0], gap=10, low=0, high=10) == [-10, 0, 10]
