"""Overrides of ``tta-bench bench``: the runs that they select, and messages for wrong ones."""

from __future__ import annotations

import json

import pytest

from tta_bench.config.compose import compose_run
from tta_bench.config.words import ConfigError, read_words
from tta_bench.experiments.bench import DEFAULT_METHODS, NOT_IN_ALL, make_plan, with_source_error
from tta_bench.methods import METHODS


def test_without_words_the_default_methods_run_once():
    plan = make_plan([])
    assert (plan.methods, plan.seeds, plan.common, plan.own) == (DEFAULT_METHODS, (0,), (), {})


def test_methods_and_seeds_are_lists():
    plan = make_plan(["methods=[source,tent]", "seeds=[3,1]"])
    assert (plan.methods, plan.seeds) == (("source", "tent"), (3, 1))


def test_one_method_and_one_seed_need_no_brackets():
    plan = make_plan(["methods=tent", "seeds=5"])
    assert (plan.methods, plan.seeds) == (("tent",), (5,))


def test_a_method_named_twice_runs_once():
    plan = make_plan(["methods=[tent,source,tent]", "seeds=[1,1,0]"])
    assert (plan.methods, plan.seeds) == (("tent", "source"), (1, 0))


def test_a_methods_own_word_reaches_only_that_method():
    plan = make_plan(["methods=[source,tent,dpcore]", "tent.lr=0.5", "setting=csc"])
    composed = {name: compose_run(plan.words(name, 2)).config for name in plan.methods}
    assert composed["tent"].method.lr == 0.5
    assert composed["dpcore"].method.lr == 0.01
    assert "lr" not in composed["source"].method
    assert {(c.setting.kind, c.seed) for c in composed.values()} == {("csc", 2)}


def test_an_own_word_may_stand_before_the_methods():
    assert make_plan(["tent.lr=0.5", "methods=[tent]"]).own == {"tent": read_words(["method.lr=0.5"])}


def test_a_method_of_ones_own_is_addressed_by_its_class_name():
    plan = make_plan(["methods=[source,mypkg.Scaled]", "Scaled.gain=2"])
    assert plan.words("mypkg.Scaled", 0) == read_words(["method=mypkg.Scaled", "method.gain=2", "seed=0"])
    assert plan.words("source", 0) == read_words(["method=source", "seed=0"])


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["methods=[]"], ["methods=[]", "at least one"]),
        (["methods="], ["at least one"]),
        (["seeds=[]"], ["at least one"]),
        (["methods=[source,tent"], ["methods=[source,tent"]),
        (["methods=source,tent"], ["[a,b]"]),
        (["seeds=[0,x]"], ["integer", "'x'"]),
        (["seeds=[-1]"], ["seeds", "greater than or equal to 0", "-1"]),
        (["seeds=[1.5]"], ["integer", "1.5"]),
        (["seeds=[true]"], ["integer", "True"]),
        (["method=tent"], ["methods=[tent]"]),
        (["seed=3"], ["seeds=[3]"]),
        (["method.lr=0.1"], ["method.lr=0.1", "dpcore.lr=0.1"]),
        (["methods=[source]", "tent.lr=1"], ["tent", "methods=[source]"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_wrong_word_is_one_sentence_with_the_remedy(words, parts):
    with pytest.raises(ConfigError) as caught:
        make_plan(words)
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, 40.0),
        ({"status": "failed"}, None),
        ({"method": "tent"}, None),
        ({"stream_sha256": "other"}, None),
        ({"weights_sha256": "other"}, None),
        ({"data": {"severity": 3}}, None),
        ({"preprocess": {"mean": 0}}, None),
    ],
    ids=str,
)
def test_only_a_finished_source_on_the_same_stream_is_the_reference(tmp_path, source, expected):
    same = {"stream_sha256": "s", "weights_sha256": "w", "data": {}, "preprocess": {}, "status": "done"}
    result = {**same, "method": "dpcore", "mean_error": 30.0, "source_mean_error": None, "folder": str(tmp_path)}
    other = {**same, "method": "source", "mean_error": 40.0, **source}
    assert with_source_error(result, [other, result])["source_mean_error"] == expected
    if expected:
        assert json.loads((tmp_path / "result.json").read_text())["source_mean_error"] == expected


def test_all_means_every_method_but_those_named_as_left_out():
    plan = make_plan(["methods=all"])
    assert set(plan.methods) | set(NOT_IN_ALL) >= set(METHODS)
    assert not set(plan.methods) & set(NOT_IN_ALL)
    assert make_plan(["methods=[memo]"]).methods == ("memo",)
