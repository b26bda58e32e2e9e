"""What a bench recommends, and when it says that it cannot tell."""

from __future__ import annotations

from tests.helpers.report_runs import result
from tta_bench.report.recommendation import recommendations

COUNTS = {"gaussian_noise": 500, "fog": 500}
NO_LABELS = dict.fromkeys(COUNTS, 0)


def run(method, errors=(40.0, 20.0), seed=0, counts=COUNTS, labelled=None, **estimates):
    known = {"num_labelled": labelled} if labelled is not None else {}
    if labelled is not None and not any(labelled.values()):
        known |= {"mean_error": None, "domain_error": dict.fromkeys(COUNTS)}
    free = {"label_free": {"source_agreement": 80.0, **estimates}} if estimates else {}
    return result(method, seed, errors, num_samples=counts, **known, **free)


def told(*runs):
    (sentence,) = recommendations(runs)
    return sentence


def test_a_clear_gain_is_recommended_with_its_interval():
    sentence = told(run("source"), run("tent", (30.0, 10.0)))
    assert sentence.startswith(
        "Recommendation: tent, with a mean error of 20.0 %, against 30.0 % of source (gain +10.0"
    )
    assert "1000 labelled images" in sentence


def test_the_same_gain_over_few_labels_cannot_be_told():
    few = {"gaussian_noise": 20, "fog": 20}
    sentence = told(run("source", labelled=few), run("tent", (30.0, 10.0), labelled=few))
    assert sentence.startswith("Recommendation: keep source; whether another method is better cannot be told.")
    assert "tent, has a mean error of 20.0 %" in sentence
    assert "40 labelled images" in sentence


def test_several_seeds_are_compared_in_pairs():
    source = [run("source", (40.0 + 9 * k, 20.0), seed=k) for k in range(3)]  # streams differ by more than methods
    tent = [run("tent", (39.0 + 9 * k + 0.01 * k, 19.0), seed=k) for k in range(3)]
    assert told(*source, *tent).startswith("Recommendation: tent")
    worse = [run("tent", (39.0 + 12 * k, 19.0), seed=k) for k in range(3)]
    assert told(*source, *worse).startswith("Recommendation: keep source")


def test_a_method_that_is_worse_is_not_recommended():
    assert told(run("source"), run("tent", (60.0, 50.0))).startswith("Recommendation: keep source")


def test_a_loss_that_rounds_to_nothing_has_no_sign_of_a_loss():
    assert "(gain +0.0, " in told(run("source"), run("tent", (40.0, 20.002)))


class TestWithoutLabels:
    def source(self):
        return run("source", labelled=NO_LABELS, atc_accuracy=60.0, nuclear_norm=50.0)

    def tent(self, **estimates):
        return run("tent", labelled=NO_LABELS, **{"atc_accuracy": 70.0, "nuclear_norm": 55.0, **estimates})

    def test_both_estimates_have_to_rise(self):
        sentence = told(self.source(), self.tent())
        assert sentence.startswith("Recommendation: perhaps tent; no image has a label")
        assert "ATC 70.0 (source 60.0), nuclear norm 55.0 (source 50.0)" in sentence
        assert "Labels for about 100 random images" in sentence

    def test_one_of_them_is_not_enough(self):
        for estimates in ({"nuclear_norm": 50.5}, {"atc_accuracy": 59.0}, {"atc_accuracy": None}):
            assert told(self.source(), self.tent(**estimates)).startswith("Recommendation: keep source")

    def test_nor_are_both_if_most_predictions_changed(self):
        assert told(self.source(), self.tent(source_agreement=40.0)).startswith("Recommendation: keep source")

    def test_nothing_was_measured(self):
        sentence = told(run("source", labelled=NO_LABELS), run("tent", labelled=NO_LABELS))
        assert sentence.startswith("Recommendation: none; no image has a label")


def test_a_single_method_or_no_source_gives_none():
    assert recommendations([run("source")]) == []
    assert recommendations([run("tent"), run("sar")]) == []
