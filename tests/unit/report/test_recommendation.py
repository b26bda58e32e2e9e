"""What a bench recommends, and when it says that it cannot tell."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_1samp

from tests.helpers.report_runs import result, write_run
from tta_bench.report.recommendation import recommendations
from tta_bench.report.runs import RunRecord
from tta_bench.results.run_folder import read_results

NO_LABELS = {"gaussian_noise": 0, "fog": 0}


@pytest.fixture
def told(tmp_path):
    """The recommendation for runs on one stream, given the wrong predictions of each method in batches of ``size``."""

    def tell(size=20, domains=("fog",), **wrong):
        home = tmp_path / str(len(list(tmp_path.iterdir())))
        for method, counts in wrong.items():
            batches = [{domains[k % len(domains)]: (size, count)} for k, count in enumerate(counts)]
            write_run(home / method, result(method), batches)
        (sentence,) = recommendations(read_results([home]))
        return sentence

    return tell


def interval(sentence):
    return [float(x) for x in re.search(r"interval ([+-][\d.]+) to ([+-][\d.]+)", sentence).groups()]


class TestOnOneStream:
    SOURCE = (9, 12, 7, 10, 11, 8, 13, 10, 9, 11)

    def test_the_interval_is_that_of_the_paired_differences(self, told):
        tent = (5, 9, 6, 6, 6, 5, 8, 7, 4, 8)
        sentence = told(source=self.SOURCE, tent=tent)
        assert sentence.startswith(
            "Recommendation: tent, with a mean error of 32.0 %, against 50.0 % of source (gain +"
        )
        assert sentence.endswith("; 200 labelled images of one stream).")
        differences = 12 * 100 / 200 * np.array([*np.subtract(self.SOURCE, tent), 1, -1])
        expected = ttest_1samp(differences, 0).confidence_interval(0.95)
        assert interval(sentence) == pytest.approx(expected, abs=0.05)

    def test_domains_of_any_size_have_the_same_weight(self, told):
        source, tent = (10, 4, 12, 6, 10, 4), (2, 5, 3, 7, 2, 5)  # better in the larger domain, worse in the other
        sentence = told(domains=("fog", "snow", "fog"), source=source, tent=tent)
        (gain,) = re.findall(r"gain ([+-][\d.]+)", sentence)
        weights = 100 / 2 / np.array([80, 40, 80, 80, 40, 80])
        assert float(gain) == pytest.approx(float(weights @ np.subtract(source, tent)), abs=0.05)

    def test_the_best_of_many_needs_more_than_the_only_one(self, told):
        tent = (8, 10, 7, 9, 9, 9, 11, 9, 9, 9)
        same = {f"method{k}": self.SOURCE for k in range(9)}
        assert told(source=self.SOURCE, tent=tent).startswith("Recommendation: tent")
        sentence = told(source=self.SOURCE, tent=tent, **same)
        assert sentence.startswith(
            "Recommendation: keep source; whether another method is better cannot be told. The best other, tent, has a"
        )
        assert "for all 10 methods together" in sentence
        differences = 12 * 100 / 200 * np.array([*np.subtract(self.SOURCE, tent), 1, -1])
        expected = ttest_1samp(differences, 0).confidence_interval(1 - 0.05 / 10)
        assert interval(sentence) == pytest.approx(expected, abs=0.05)

    @pytest.mark.parametrize("differ", [3, 4, 5, 6, 7])
    def test_few_differences_are_judged_as_by_the_exact_test(self, told, differ):
        """McNemar's test with all differences in favour of the method."""
        source, tent = [1] * differ + [0] * (24 - differ), [0] * 24
        recommended = told(size=2, source=source, tent=tent).startswith("Recommendation: tent")
        assert recommended == (binomtest(differ, differ).pvalue < 0.05)

    def test_methods_that_are_as_good_are_named(self, told):
        tent, sar = (5, 9, 6, 6, 6, 5, 8, 7, 4, 8), (5, 9, 6, 6, 6, 5, 8, 7, 5, 8)
        sentence = told(source=self.SOURCE, tent=tent, sar=sar, eta=self.SOURCE)
        assert sentence.startswith("Recommendation: tent")
        assert sentence.endswith(" Whether it is better than sar cannot be told.")

    def test_a_certain_gain_is_preferred_to_a_larger_uncertain_one(self, told):
        steady, wild = [x - 3 for x in self.SOURCE], [0, 0, 0, 0, 0, 10, 17, 12, 12, 13]
        sentence = told(source=self.SOURCE, steady=steady, wild=wild)
        assert sum(wild) < sum(steady)
        assert sentence.startswith("Recommendation: steady")
        assert sentence.endswith(" Whether it is better than wild cannot be told.")

    def test_a_method_that_is_worse_is_not_recommended(self, told):
        worse = [x + 5 for x in self.SOURCE]
        assert told(source=self.SOURCE, tent=worse).startswith("Recommendation: keep source")

    def test_without_the_batches_nothing_is_said_of_chance(self):
        known = {"num_samples": {"gaussian_noise": 500, "fog": 500}}
        (sentence,) = recommendations([result("source", **known), result("tent", errors=(30.0, 10.0), **known)])
        assert sentence.startswith("Recommendation: undecided. tent has a mean error of 20.0 %, against 30.0 %")


def test_several_seeds_are_compared_in_pairs():
    known = {"num_samples": {"gaussian_noise": 500, "fog": 500}}

    def tell(gains):
        runs = []
        for seed, gain in enumerate(gains):  # streams differ by more than methods
            runs.append(result("source", seed, (40.0 + 9 * seed, 20.0), **known))
            runs.append(result("tent", seed, (40.0 + 9 * seed - 2 * gain, 20.0), **known))
        (sentence,) = recommendations(runs)
        return sentence

    sentence = tell([1.0, 1.1, 1.2])
    assert sentence.startswith("Recommendation: tent")
    assert interval(sentence) == pytest.approx(ttest_1samp([1.0, 1.1, 1.2], 0).confidence_interval(0.95), abs=0.05)
    assert "; 3 streams)" in sentence
    assert tell([1.0, -0.4, 2.1]).startswith("Recommendation: keep source")


def test_a_loss_that_rounds_to_nothing_has_no_sign_of_a_loss():
    known = {"num_samples": {"gaussian_noise": 500, "fog": 500}}
    runs = [result(m, s, (40.0, x), **known) for s in (0, 1) for m, x in (("source", 20.0), ("tent", 20.002))]
    assert "(gain +0.0, " in recommendations(runs)[0]


class TestWithoutLabels:
    def run(self, method, agreement=None, **more):
        free = {} if agreement is None else {"label_free": {"source_agreement": agreement}}
        errors = {"mean_error": None, "domain_error": dict.fromkeys(NO_LABELS)}
        return result(method, num_labelled=NO_LABELS, **errors, **free, **more)

    def test_no_method_is_recommended_and_how_much_it_may_change_is_said(self):
        runs = [self.run(m, a) for m, a in (("source", 100.0), ("tent", 99.0), ("lame", 80.0), ("sar", 97.5))]
        (sentence,) = recommendations([*runs, self.run("eta", 98.5)])
        assert sentence.startswith("Recommendation: none; no image has a label, and estimates without labels do not")
        assert "source: lame on 20.0 %, sar on 2.5 %, eta on 1.5 % of the images" in sentence
        assert "tent" not in sentence

    def test_few_labels_are_none(self):
        few = {"num_labelled": {"gaussian_noise": 14, "fog": 15}}
        runs = [result(m, label_free={"source_agreement": 90.0}, **few) for m in ("source", "tent")]
        assert "only 29 images have a label" in recommendations(runs)[0]

    def test_nothing_was_measured(self):
        (sentence,) = recommendations([self.run("source"), self.run("tent")])
        assert sentence.startswith("Recommendation: none; no image has a label, and nothing else was measured")


def test_a_single_method_or_no_source_gives_none():
    assert recommendations([result("source")]) == []
    assert recommendations([result("tent"), result("sar")]) == []


def test_the_parts_of_the_stream_sum_to_its_error(tmp_path):
    rng = np.random.default_rng(0)
    batches = [{("fog", "snow")[k % 3 > 0]: (4, int(rng.integers(5)))} for k in range(700)]
    write_run(tmp_path / "run", result("tent"), batches)
    (record,) = map(RunRecord, read_results([tmp_path]))
    for _ in range(2):  # read, and kept
        assert len(record.trace.error_parts) <= 300
        assert sum(record.trace.error_parts) == pytest.approx(record.mean_error)
        (record,) = map(RunRecord, read_results([tmp_path]))
