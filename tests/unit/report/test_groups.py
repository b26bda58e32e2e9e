"""Groups and entries of runs: what is averaged, ranked and compared, with numbers by hand."""

from __future__ import annotations

import json
import re

import pytest

from tests.helpers.report_runs import result, write_run
from tta_bench.report import report_text
from tta_bench.report.groups import group_runs
from tta_bench.report.measures import EXTRA, MEAN, MEAN_IOU, domain_measures, has_collapsed
from tta_bench.report.protocol import differences, protocol_card
from tta_bench.report.runs import RunRecord, StreamId
from tta_bench.results.run_folder import read_results


def groups(*results, **options):
    return group_runs(map(RunRecord, results), **options)


def group(*results, **options):
    (only,) = groups(*results, **options)
    return only


def entry(found, label):
    (only,) = [e for e in found.entries if e.label == label]
    return only


@pytest.mark.parametrize(
    ("change", "value", "named"),
    [
        ("dataset", "other", "dataset"),
        ("setting", "csc", "setting"),
        ("model", "other", "model"),
        ("weights_sha256", "00", "weights_sha256"),
        ("preprocess", {"mean": [0.0], "std": [1.0]}, "preprocess"),
        ("data__num_images", 20, "dataset.num_images"),
        ("data__severity", 3, "dataset.severity"),
        ("config__setting__batch_size", 8, "setting.batch_size"),
        ("config__setting__delta", 0.1, "setting.delta"),
        ("config__setting__rounds", 3, "setting.rounds"),
        ("config__trainer__precision", "16-mixed", "trainer.precision"),
        ("config__model__compile", "default", "model.compile"),
        ("stream_sha256", "f" * 64, "stream"),
    ],
)
def test_another_protocol_is_never_averaged_nor_ranked_together_and_the_report_says_why(change, value, named):
    other = result(errors=(0, 0), **{change: value})
    found = groups(result("source", errors=(50, 50)), result(errors=(40, 40)), other)
    assert [[e.label for e in g.entries] for g in found] == [["source", "tent"], ["tent"]]
    assert entry(found[0], "tent").spread(MEAN.value).mean == 40
    assert MEAN.ranks(found[0]) == {entry(found[0], "tent"): 1}
    assert MEAN.ranks(found[1]) == {}
    ((key, (own, others)),) = differences(found)
    assert key == named
    assert own != others


def test_a_stream_that_differs_for_one_seed_leaves_the_other_seeds_together():
    odd = result("dpcore", seed=1, stream_sha256="f" * 64)
    found = groups(result(seed=0), result(seed=1), result("source", seed=0), result("source", seed=1), odd)
    assert [len(g.runs) for g in found] == [4, 1]
    assert "stream=ffffffffffff" in found[1].note


def test_seeds_and_orders_are_streams_of_one_entry():
    found = group(
        result(seed=0, errors=(40, 20)),
        result(seed=1, errors=(44, 20)),
        result(seed=0, errors=(42, 20), config__setting__order="cotta_0", stream_sha256="5" * 64),
    )
    assert list(entry(found, "tent").counted) == [StreamId(0, ""), StreamId(0, "cotta_0"), StreamId(1, "")]
    spread = entry(found, "tent").spread(MEAN.value)
    assert (spread.mean, spread.std, spread.n) == (31.0, 1.0, 3)
    assert found.in_words() == "seeds 0, 1 · order cotta_0"


def test_hyper_parameters_make_entries_named_by_what_differs():
    found = group(result(), result(config__method={"lr": 0.5}), result("source", config__method={}))
    assert [e.label for e in found.entries] == ["tent lr=0.1", "tent lr=0.5", "source"]


def test_a_policy_outside_the_method_makes_an_entry_of_its_own_that_is_called_an_oracle():
    told = result(config__reset="domain", oracle="reset=domain", errors=(0, 0))
    found = group(result(config__reset="never"), told, result("source", config__reset="never"))
    assert [(e.label, e.notes) for e in found.entries] == [
        ("tent reset=never", []), ("tent reset=domain", ["oracle"]), ("source", []),
    ]  # fmt: skip


def test_where_a_run_lay_and_ran_is_no_hyper_parameter():
    found = group(result(config__output="a", config__threads=1), result(seed=1, config__output="b", config__threads=2))
    assert [len(e.counted) for e in found.entries] == [2]


def test_of_several_runs_of_one_stream_the_last_finished_counts():
    early, late = "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"
    found = group(result(errors=(10, 10), finished=late), result(errors=(90, 90), finished=early))
    assert entry(found, "tent").spread(MEAN.value).n == 1
    assert entry(found, "tent").spread(MEAN.value).mean == 10
    assert entry(found, "tent").notes == ["1 repeated, not counted"]


def test_failed_and_running_runs_are_shown_and_not_counted():
    found = group(result(), result(seed=1, status="failed", mean_error=99.0), result(seed=2, status="running"))
    assert entry(found, "tent").notes == ["1 failed", "1 running"]
    assert entry(found, "tent").spread(MEAN.value).mean == 30
    assert len(found.runs) == 3


class TestGain:
    def test_is_paired_by_stream_with_an_interval(self):
        runs = [result("source", seed=s, errors=(e, e)) for s, e in enumerate((52, 54, 56, 90))]
        runs += [result("tent", seed=s, errors=(50, 50)) for s in range(3)]
        found = group(*runs)
        gain = found.gain(entry(found, "tent"))
        assert (gain.mean, gain.n) == (4.0, 3)
        assert gain.half_width == pytest.approx(4.968276, abs=1e-5)

    def test_of_one_seed_has_no_interval(self):
        found = group(result("source", errors=(50, 50)), result(errors=(40, 40)))
        assert (found.gain(entry(found, "tent")).mean, found.gain(entry(found, "tent")).interval) == (10.0, None)

    def test_of_the_baseline_is_zero_without_interval(self):
        found = group(*(result("source", seed=s) for s in (0, 1)))
        assert (found.gain(found.entries[0]).mean, found.gain(found.entries[0]).interval) == (0.0, None)

    def test_without_source_runs_uses_the_error_of_source_that_runs_remember(self):
        found = group(result(errors=(40, 40), source_mean_error=50.0), result("dpcore"))
        assert found.gain(entry(found, "tent")).mean == 10.0
        assert found.gain(entry(found, "dpcore")) is None

    def test_is_over_source_s_own_run_where_there_is_one(self):
        runs = [result("source", seed=0, errors=(60, 60))]
        runs += [result("tent", seed=s, errors=(40, 40), source_mean_error=50.0) for s in (0, 1)]
        found = group(*runs)
        gain = found.gain(entry(found, "tent"))
        assert (gain.mean, gain.n) == (15.0, 2)  # 60 - 40 for seed 0, 50 - 40 for seed 1

    def test_can_be_over_another_method_or_column(self):
        runs = [result(errors=(40, 40)), result(config__method={"lr": 0.5}, errors=(30, 30)), result("dpcore")]
        found = group(*runs, baseline="tent lr=0.5")
        assert found.gain(entry(found, "tent lr=0.1")).mean == -10.0
        assert group(*runs, baseline="dpcore").gain(found.entries[0]) is not None

    def test_an_unknown_baseline_is_one_sentence_with_the_names(self):
        with pytest.raises(ValueError, match=r"^there is no baseline tant: choose one of tent, source$"):
            group(result(), result("source"), baseline="tant")

    def test_a_baseline_of_several_columns_must_say_which(self):
        with pytest.raises(ValueError, match=r"^baseline tent is ambiguous: .* tent lr=0.1, tent lr=0.5$"):
            group(result(), result(config__method={"lr": 0.5}), baseline="tent")


class TestRanks:
    """Best and second best, by the same rule in every format."""

    CASES = (
        ((30.0, 30.0, 40.0, 50.0), (1, 1, None, None)),
        ((75.0, 75.0, 75.0, 100.0), (1, 1, 1, None)),
        ((30.0, 40.0, 40.0, 50.0), (1, 2, 2, None)),
        ((75.0, 75.0, 75.0, 75.0), (None, None, None, None)),
        ((30.0, 40.0), (1, None)),
        ((40.04, 39.96, 50.0), (1, 1, None)),  # both printed as 40.0
        ((40.0,), (None,)),
    )

    @pytest.mark.parametrize(("errors", "expected"), CASES)
    def test_are_those_of_a_competition(self, errors, expected):
        found = group(*(result(f"m{k}", errors=(e, e)) for k, e in enumerate(errors)))
        assert tuple(MEAN.ranks(found).get(e) for e in found.entries) == expected

    @pytest.mark.parametrize(("errors", "expected"), CASES)
    def test_of_a_measure_that_is_better_when_higher_are_those_of_its_negative(self, errors, expected):
        found = group(*(result(f"m{k}", mean_iou=100 - e) for k, e in enumerate(errors)))
        assert tuple(MEAN_IOU.ranks(found).get(e) for e in found.entries) == expected

    @pytest.mark.parametrize(
        ("form", "marks"),
        [
            ("latex", (r"\\textbf{", r"\\underline{")),
            ("markdown", (r" \*\*\d", r" \*\d")),
            ("html", ('p-error best"', 'p-error second"')),
        ],
    )
    @pytest.mark.parametrize(("errors", "expected"), CASES)
    def test_are_marked_in_every_format(self, errors, expected, form, marks):
        """Two domains and the mean are alike, so each mark stands three times in LaTeX and Markdown."""
        runs = [result(f"m{k}", errors=(e, e)) for k, e in enumerate(errors)]
        text = report_text(runs, form)
        text = text[: text.find("\n\n| Method | Forward")] if form == "markdown" else text
        counts = [len(re.findall(mark, text.split("second best")[-1] if form != "html" else text)) for mark in marks]
        each = 1 if form == "html" else 3
        assert counts == [each * expected.count(1), each * expected.count(2)]

    def test_means_over_other_streams_are_not_ranked(self):
        both = [result(m, seed=s, errors=(e, e)) for m, e in (("a", 40), ("b", 50)) for s in (0, 1)]
        found = group(*both, result("lucky", seed=0, errors=(1, 1)))
        assert {e.label for e in MEAN.ranks(found)} == {"a"}
        assert not found.is_ranked(entry(found, "lucky"))

    @pytest.mark.parametrize(
        ("seeds", "ranked"),
        [
            ({"a": (0, 1), "b": (0,), "c": (0,)}, {"b", "c"}),  # the streams of most entries, not the most streams
            ({"a": (0,), "b": (0, 1), "c": (0,), "d": (0, 1)}, {"b", "d"}),  # of equally many, the most streams
            ({"a": (0, 1), "b": (0,)}, {"a"}),
            ({"b": (0,), "a": (0, 1)}, {"a"}),
        ],
    )
    def test_are_over_the_streams_of_most_entries(self, seeds, ranked):
        found = group(*(result(m, seed=s) for m, own in seeds.items() for s in own))
        assert {e.label for e in found.entries if found.is_ranked(e)} == ranked

    def test_one_edited_run_of_two_is_enough_to_lose_the_rank(self, tmp_path):
        for method in ("a", "b"):
            for seed in (0, 1):
                write_run(tmp_path / method / str(seed), result(method, seed), [{"fog": (4, 1 + (method == "b"))}])
        file = tmp_path / "b" / "0" / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"mean_error": 0.0}))
        found = group(*read_results([tmp_path]))
        assert not entry(found, "b").is_sound
        assert entry(found, "a").is_sound
        assert {e.label for e in found.entries if found.is_ranked(e)} == {"a"}

    def test_means_of_edited_files_are_shown_but_never_called_best(self, tmp_path):
        for method, wrong in (("a", 1), ("b", 2), ("edited", 3)):
            folder = write_run(tmp_path / method, result(method), [{"fog": (4, wrong)}])
        content = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(content | {"mean_error": 0.0}))
        found = group(*read_results([tmp_path]))
        assert entry(found, "edited").spread(MEAN.value).mean == 0.0
        assert {e.label: rank for e, rank in MEAN.ranks(found).items()} == {"a": 1}
        page = report_text(read_results([tmp_path]), "html")
        assert "1 with inconsistent files" in page
        assert "not ranked" not in page


def test_corruptions_stand_in_the_papers_order_whatever_the_data_sets():
    run = result(domains=["fog", "gaussian_noise"], domain_error={"fog": 1.0, "gaussian_noise": 2.0})
    assert [(m.heading, m.title) for m in domain_measures(group(run))] == [("Noise", "Gauss."), ("Weather", "Fog")]


def test_other_domains_stand_in_the_data_sets_order():
    run = result(domains=["night", "fog"], domain_error={"fog": 1.0, "night": 2.0})
    assert [m.title for m in domain_measures(group(run))] == ["night", "fog"]


def test_measures_that_runs_do_not_have_are_unknown_and_others_are_read():
    runs = [result(ece=7.5, top_class_share=0.9), result("source")]
    known = {m.key: m for m in EXTRA if m.is_known([group(*runs)])}
    assert set(known) == {"sample_error", "ece", "top_class_share"}
    assert known["top_class_share"].value(RunRecord(runs[0])) == 90.0


def test_numbers_that_are_no_numbers_are_unknown():
    run = RunRecord(result(mean_error=float("nan"), seconds="long", extra_parameters=None))
    assert [run.number(key) for key in ("mean_error", "seconds", "extra_parameters", "nothing")] == [None] * 4


def test_the_protocol_card_says_what_the_numbers_depend_on():
    card = dict(protocol_card(group(result(), result("dpcore", needs_source="labeled images", code_sha256="ee"))))
    assert card["Data set"] == ["shapes_c", "clean procedural shapes", "num images 10", "severity 5"]
    assert card["Batch size"] == ["4"]
    assert card["Streams"] == ["seed 0: 000000000000"]
    assert card["Preprocessing"] == ["mean 0.5", "std 0.25"]
    assert "source domain, labeled images: dpcore" in card["What methods see"]
    assert "code cdcdcdcdcdcd, ee (differs between runs)" in card["Versions"]


@pytest.mark.parametrize(
    ("own", "source", "collapsed"),
    [
        ([0.2] * 19 + [1.0] * 2, [0.3] * 21, True),  # at the end only
        ([1.0] * 19 + [0.2] * 2, [0.3] * 21, False),  # recovered
        ([0.4] * 21, [0.1] * 21, False),  # less than half
        ([1.0] * 21, [0.8] * 21, False),  # so has the baseline
    ],
)
def test_collapsed_is_one_class_at_the_end_that_the_baseline_does_not_have(tmp_path, own, source, collapsed):
    for method, shares in (("tent", own), ("source", source)):
        write_run(tmp_path / method, result(method), [{"fog": (4, 1)}] * 21, top_class_share=shares)
    found = group(*read_results([tmp_path]))
    assert has_collapsed(found, entry(found, "tent")) is collapsed
    assert not has_collapsed(found, entry(found, "source"))


def test_without_a_baseline_nothing_is_called_collapsed(tmp_path):
    write_run(tmp_path / "a", result(), [{"fog": (4, 1)}] * 3, top_class_share=[1.0] * 3)
    found = group(*read_results([tmp_path]))
    assert not has_collapsed(found, found.entries[0])


def test_the_card_names_the_files_of_tuned_values():
    taken = result("vida", tuned="tuned/shapes_c/vida.yaml")
    (group,) = group_runs(map(RunRecord, [result("source", tuned=None), taken]))
    assert dict(protocol_card(group))["Tuned values"] == ["vida: tuned/shapes_c/vida.yaml"]
    (group,) = group_runs([RunRecord(result("source", tuned=None))])
    assert dict(protocol_card(group))["Tuned values"] == ["none"]
