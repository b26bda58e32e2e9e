"""Identity of runs: each configuration key is part of it, or is listed with the reason why it is not."""

from __future__ import annotations

import copy
import io

import pytest
from rich.console import Console

from tests.helpers.report_runs import result, write_run
from tta_bench.config.compose import compose_run, plain
from tta_bench.experiments.resume import find_finished
from tta_bench.results.identity import FACTS, NOT_IDENTITY, config_hash, identity
from tta_bench.results.run_folder import read_results

CONFIG = plain(compose_run(["method=dpcore", "setting=cdc", "logger=[wandb,csv]", "callbacks=device_stats"]).config)
HEADER = {"config": CONFIG, **{fact: f"some {fact}" for fact in FACTS}}


def leaves(tree, path=()):
    """The path of every value."""
    for key, value in tree.items():
        yield from leaves(value, (*path, key)) if isinstance(value, dict) and value else [(*path, key)]


def changed(path):
    """The header of a run that differs in one value."""
    other = copy.deepcopy(HEADER)
    node = other["config"]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = "another" if node[path[-1]] != "another" else "one"
    return other


@pytest.mark.parametrize("path", list(leaves(CONFIG)), ids=".".join)
def test_every_key_is_identity_unless_a_reason_is_given(path):
    other = changed(path)
    differs = path[0] not in NOT_IDENTITY
    assert (identity(other) != identity(HEADER)) == differs
    assert (config_hash(other["config"]) != config_hash(CONFIG)) == differs


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_is_identity(fact):
    assert identity({**HEADER, fact: "another"}) != identity(HEADER)


def test_the_facts_are_those_that_determine_numbers():
    assert set(FACTS) == {"stream_sha256", "weights_sha256", "code_sha256", "data", "preprocess", "versions"}


def test_the_identity_names_every_value_by_its_place():
    config = {"seed": 1, "output": "x", "setting": {"kind": "csc", "deep": {"delta": None}}, "method": {"kind": True}}
    unknown = {"code_sha256": "null", "weights_sha256": "null", "preprocess": "null", "versions": "null"}
    assert identity({"config": config, "stream_sha256": "ab", "data": {"split": ["a", 1]}}, device="cpu") == {
        "seed": "1", "setting.kind": '"csc"', "setting.deep.delta": "null", "method.kind": "true",
        "stream_sha256": '"ab"', "data.split": '["a", 1]', "device": '"cpu"', **unknown,
    }  # fmt: skip


def test_the_hash_of_a_configuration_does_not_depend_on_the_order_of_its_keys():
    turned = {key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in CONFIG.items()}
    assert config_hash(dict(reversed(turned.items()))) == config_hash(CONFIG)


def test_the_hashes_of_many_configurations_differ():
    hashes = {config_hash({**CONFIG, "seed": seed}) for seed in range(2000)}
    assert len(hashes) == 2000
    assert {len(digits) for digits in hashes} == {8}


def test_what_is_listed_is_a_key_and_has_a_reason():
    assert set(NOT_IDENTITY) <= set(CONFIG)
    assert all(len(reason) > 10 for reason in NOT_IDENTITY.values())


@pytest.mark.parametrize("word", ["reset=domain", "forgetting=8", "seed=1", "callbacks=device_stats", "method.lr=0.5"])
def test_a_finished_run_never_answers_for_another(word, tmp_path):
    words = ["method=tent", "setting=csc"]
    config, other = (plain(compose_run([*words, *more]).config) for more in ([], [word]))
    folder = write_run(tmp_path / "run", {**result("tent"), **HEADER, "config": config}, [{"fog": (4, 1)}])
    (mine,) = read_results([folder])
    console = Console(file=io.StringIO(), width=300)
    assert find_finished(folder, identity({**mine, "config": other}), "tent", console) is None
    assert "running again, because" in console.file.getvalue()
    assert find_finished(folder, identity(mine), "tent", console)["status"] == "done"


def test_a_finished_run_whose_files_were_edited_runs_again(tmp_path):
    folder = write_run(tmp_path / "run", result("tent"), [{"fog": (4, 1)}])
    (mine,) = read_results([folder])
    path = folder / "result.json"
    path.write_text(path.read_text().replace('"mean_error": 25.0', '"mean_error": 5.0'))
    console = Console(file=io.StringIO(), width=300)
    assert find_finished(folder, identity(mine), "tent", console) is None
    assert (
        "tent: running again, because its files are inconsistent: result.json was changed after the run"
        in console.file.getvalue()
    )
