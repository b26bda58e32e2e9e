"""The paper's numbers, checked against the paper's own means, gains and other tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev

import pytest

from tta_bench.config.compose import compose_run, compose_runs, options
from tta_bench.config.registry import register_all
from tta_bench.config.words import Override, read_words, value_of
from tta_bench.paper.measures import MEASURES
from tta_bench.paper.reproduce import make_plan
from tta_bench.paper.tables import PaperColumn, PaperRow, PaperTable, load_table, paper_folder, table_names

NAMES = {
    "imagenetc_csc", "imagenetc_cdc", "acdc_csc", "acdc_cdc", "components", "computation", "memory_management",
    "single_domain_prompt", "ten_orders", "cifar10_csc", "cifar10_cdc", "cifar100_csc", "cifar100_cdc", "cdc_2d",
    "cdc_2d_random_vectors", "dirichlet_sweep", "ptta", "small_batch", "prompt_length", "threshold", "num_source",
    "batch_size", "source_free", "coreset_growth", "domain_distance",
}  # fmt: skip
ROUNDING = 0.05 + 1e-9
# What the paper prints where its own columns give something else, and what they give.
SLIPS = {
    ("imagenetc_csc", "Pseudo-label", "Mean"): (61.2, 66.83),
    ("cifar10_csc", "Source", "Mean"): (28.2, 28.15),
    ("cifar10_cdc", "Source", "Mean"): (28.2, 28.15),
    ("cdc_2d", "SAR", "Gain"): (8.1, 8.4),
    ("cdc_2d_random_vectors", "DPCore", "Std"): (0.7, 0.83),
    ("ptta", "RoTTA", "PTTA gain"): (6.35, 6.3),
    ("ptta", "DPCore", "PTTA gain"): (12.0, 11.9),
    ("acdc_csc", "Tent", "Mean"): (55.7, 55.87),
    ("acdc_csc", "DePT", "Round 1 Mean"): (56.5, 56.7),
    ("acdc_csc", "DePT", "Mean"): (53.4, 53.5),
    ("acdc_csc", "VDP", "Round 2 Mean"): (58.2, 58.28),
    ("acdc_csc", "EcoTTA", "Mean"): (55.8, 55.9),
    ("acdc_cdc", "CoTTA", "Gain"): (0.5, 0.6),
    ("acdc_cdc", "ViDA", "Mean"): (59.2, 59.27),
    ("acdc_cdc", "C-MAE", "Mean"): (58.7, 59.47),
}
# Words that say what holds without them.
DEFAULTS = {"setting.delta=1.0", "setting.batch_size=64", "method.rho=0.8", "method.prompt_length=8"} | {
    "method.num_source=300"
}
# Forward passes per image, a backward pass counted as two. DPCore learns 14 prompts of 50 steps in 11,730 batches; a
# new prompt for every batch is Exp-2.
EXP2 = 2 + 50 * 3
DPCORE = 4 + 14 * EXP2 / 11_730
PASSES = {
    "source": 1, "pseudo_label": 3, "tent": 3, "cotta": 5, "vdp": 4, "sar": 6, "rotta": 5, "rdumb": 3, "ecotta": 4,
    "vida": 14, "bdg": 8, "cmae": 14, "dpcore_exp1": 4, "dpcore_exp2": EXP2,
    "dpcore_b": 1 + DPCORE,
}  # fmt: skip

TABLES = [load_table(name) for name in table_names()]


def computed(table: PaperTable, row: PaperRow) -> Iterator[tuple[str, float]]:
    """What the means, gains and deviations of a row should be, from its other numbers."""
    paper = row.paper
    source = next((other.paper for other in table.rows if other.method == "source"), {})
    parts = {"Average": ("CSC", "PTTA", "CDC"), "Average gain": ("CSC gain", "PTTA gain", "CDC gain")}
    if domains := [column.name for column in table.columns if column.domain and "Round" not in column.name]:
        parts["Mean"] = tuple(domains)
    if table.name.startswith("acdc"):
        parts["Mean"] = tuple(f"Round {k} Mean" for k in (1, 2, 3))
        parts |= {mean: tuple(f"{mean[:7]} {d}" for d in ("Fog", "Night", "Rain", "Snow")) for mean in parts["Mean"]}
    if table.name == "cdc_2d_random_vectors":
        parts["Average"] = vectors = tuple(f"R{k}" for k in range(1, 11))
        if "R1" in paper:
            yield "Std", stdev(paper[name] for name in vectors)
    for name, of in parts.items():
        if name in paper and all(part in paper for part in of):
            yield name, fmean(paper[part] for part in of)
    for gain, of in (("Gain", "Mean"), *((f"{s} gain", s) for s in ("CSC", "PTTA", "CDC"))):
        if gain in paper and of in paper:
            sign = -1 if table.measure == "mean_iou" else 1
            yield gain, sign * (source[of] - paper[of])


def test_every_table_and_figure_is_there():
    assert set(table_names()) == NAMES
    assert {table.place for table in TABLES} >= {f"Table {k}" for k in range(1, 15) if k != 2}
    assert sum(len(row.paper) for table in TABLES for row in table.rows) > 1000


def test_the_numbers_give_the_papers_own_means_and_gains_but_for_its_slips():
    checked, found = 0, {}
    for table in TABLES:
        for row in table.rows:
            for name, value in computed(table, row):
                checked += 1
                allowed = ROUNDING if "ain" not in name or name == "Average gain" else 1e-6
                if abs(value - row.paper[name]) > allowed:
                    found[table.name, row.name, name] = (row.paper[name], round(value, 2))
    assert checked >= 150
    assert found == SLIPS


def test_the_same_run_has_the_same_number_in_every_table():
    seen: dict[object, dict[str, float]] = {}
    for table in TABLES:
        plan = make_plan(table.name)
        for row, column in plan.cells():
            if column.name in row.paper:
                runs = frozenset(frozenset(map(str, words)) - DEFAULTS for words in plan.runs(row, column))
                key = (runs, table.measure_of(row, column), column.domain, column.statistic)
                seen.setdefault(key, {})[table.name] = row.paper[column.name]
    shared = [numbers for numbers in seen.values() if len(numbers) > 1]
    assert len(shared) >= 60
    assert [numbers for numbers in shared if len(set(numbers.values())) > 1] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
class TestEveryTable:
    def test_names_methods_and_measures_that_exist(self, table):
        register_all()
        assert {row.method for row in table.rows} <= set(options("method"))
        measures = {table.measure_of(row, column) for row in table.rows for column in table.columns}
        assert measures <= set(MEASURES)
        relative = {MEASURES[measure].reference for measure in measures} - {None}
        assert relative <= {row.method for row in table.rows}

    def test_says_in_its_file_that_the_cost_is_an_estimate(self, table):
        text = (paper_folder() / f"{table.name}.yaml").read_text()
        assert "estimate" in text.partition("title:")[0]
        assert bool(table.gpu_hours) == (table.dataset != "acdc")

    def test_has_lines_of_a_readable_length(self, table):
        text = (paper_folder() / f"{table.name}.yaml").read_text()
        assert max(map(len, text.splitlines())) <= 120


def passes(words: tuple[Override, ...]) -> float:
    if value_of(words, "method.rho", 1.0) < 0.6:
        return EXP2
    if value_of(words, "method.mode") == "single":  # EcoTTA in one step
        return 3
    return PASSES.get(value_of(words, "method"), DPCORE)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_estimated_hours_follow_from_the_passes_of_the_runs(table):
    plan = make_plan(table.name)
    total = sum(map(passes, {words for cell in plan.cells() for words in plan.runs(*cell)}))
    milliseconds = {5_000: 0.7, 50_000: 0.7, 10_000: 2.2}  # per image of ViT-B/16 at 224 pixels, or 384 for CIFAR
    expected = {f"{n // 1000}k": total * 15 * n * ms / 3.6e6 for n, ms in milliseconds.items()}
    assert dict(table.gpu_hours) == pytest.approx({key: expected[key] for key in table.gpu_hours}, rel=0.05)


def distinct_runs() -> dict[frozenset[str], tuple[Override, ...]]:
    plans = [make_plan(table.name) for table in TABLES]
    return {frozenset(map(str, words)): words for plan in plans for cell in plan.cells() for words in plan.runs(*cell)}


def test_every_choice_and_every_key_of_the_tables_composes():
    covered: set[str] = set()
    for words in distinct_runs().values():
        parts = {str(word) if word.chooses else word.key for word in words}
        if not covered.issuperset(parts):
            assert compose_run(words).choices["method"] == value_of(words, "method")
            covered |= parts
    assert len(covered) >= 30


@pytest.mark.slow
def test_every_cell_of_every_table_composes():
    runs = distinct_runs()
    assert len(runs) >= 240
    compose_runs(runs.values())


def test_an_unknown_table_is_one_sentence_with_the_nearest():
    with pytest.raises(ValueError, match=r"no table or figure 'component'; did you mean 'components'\?"):
        load_table("component")


def test_a_number_for_a_column_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    text = (paper_folder() / "threshold.yaml").read_text()
    (tmp_path / "threshold.yaml").write_text(text.replace('paper: {"0.8": 39.9}', 'paper: {"0.85": 39.9}'))
    monkeypatch.setattr("tta_bench.paper.tables.paper_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"'DPCore' has a number for '0\.85', which is not a column"):
        load_table("threshold")


def test_alternatives_of_a_column_become_words():
    (column,) = load_table("memory_management").columns
    assert column == PaperColumn("Mean", over=read_words(f"setting.order=cotta_{k}" for k in range(10)))
