"""Each configuration of DPCore changes exactly the intended values of the paper."""

from __future__ import annotations

import pytest

from tta_bench.config.compose import compose_run, plain
from tta_bench.config.registry import config_folder

PAPER = {
    "prompt_length": 8, "lr": 0.01, "rho": 0.8, "tau": 3.0, "alpha": 0.999, "steps_new": 50, "prompt_space": "tokens",
    "max_size": None, "overflow": "merge", "floor_guard": 0.0, "coreset_stats": "raw", "prompt_init": "gaussian",
    "source_filter": "none", "num_source": 300,
}  # fmt: skip
CHANGED = {
    "dpcore": {},
    "dpcore_discard15": {"max_size": 15, "overflow": "discard"},
    "dpcore_exp1": {"rho": 1e9},
    "dpcore_exp2": {"rho": 0.0},
    "dpcore_exp3": {"prompt_space": "norms"},
    "dpcore_guarded": {"floor_guard": 1.5},
    "dpcore_merge15": {"max_size": 15},
    "dpcore_official": {
        "lr": 0.1, "coreset_stats": "prompted", "prompt_init": "uniform", "source_filter": "entropy",
    },
    "dpcore_source_free": {"source_filter": "confident"},
}  # fmt: skip


def test_every_file_is_pinned():
    assert {path.stem for path in (config_folder() / "method").glob("dpcore_*.yaml")} == CHANGED.keys() - {"dpcore"}


@pytest.mark.parametrize("name", CHANGED)
def test_a_configuration_holds_the_paper_s_values_and_its_changes(name):
    node = plain(compose_run([f"method={name}", "tuned=off"]).config.method)
    kept = {key: value for key, value in node.items() if not key.startswith("_") and key != "seed"}
    assert kept == {**PAPER, **CHANGED[name]}
