"""Overrides of the launch are parsed separately from those of the runs, which they never reach."""

from __future__ import annotations

import pytest

from tta_bench.config.compose import compose_launch, compose_run
from tta_bench.config.launch import ONE_BY_ONE, LocalLauncher, Shard
from tta_bench.config.words import ConfigError


def test_by_default_all_runs_come_one_by_one_in_this_process():
    launch, rest = compose_launch(["method=tent", "seed=1"])
    assert launch == ONE_BY_ONE
    assert [str(word) for word in rest] == ["method=tent", "seed=1"]


def test_words_are_read_apart_from_those_of_the_runs():
    launch, rest = compose_launch(["method=tent", "launcher.workers=3", "shard=2/5"])
    assert launch.launcher == LocalLauncher(workers=3)
    assert launch.shard == Shard(2, 5)
    assert [str(word) for word in rest] == ["method=tent"]


def test_a_folder_of_the_user_holds_launchers_too(tmp_path):
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "mine.yaml").write_text("defaults: [local]\nworkers: 7\n")
    launch, rest = compose_launch(["launcher=mine", f"config_dir={tmp_path}"])
    assert launch.launcher == LocalLauncher(workers=7)
    assert [word.key for word in rest] == ["config_dir"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shard=0/4"], "from 1/16 to 16/16"),
        (["shard=5/4"], "from 1/16 to 16/16"),
        (["shard=3"], "write the part and the number of parts"),
        (["launcher=slurm"], "there is no launcher 'slurm'"),
        (["launcher.workers=0"], "launcher.workers must be greater than or equal to 1"),
        (["launcher=ray", "launcher.cpus=0"], "launcher.cpus must be greater than 0"),
        (["launcher=ray", "launcher.gpus=-1"], "launcher.gpus must be greater than or equal to 0"),
        (["launcher=ray", "launcher.max_concurrent=0"], "launcher.max_concurrent must be greater than or equal to 1"),
        (["launcher.worker=2"], "did you mean 'launcher.workers'"),
    ],
)
def test_what_cannot_be_is_one_sentence(words, said):
    with pytest.raises(ConfigError, match=said):
        compose_launch(words)


@pytest.mark.parametrize("word", ["shard=1/2", "launcher=local", "launcher.workers=2"])
def test_a_single_run_takes_none_of_them(word):
    with pytest.raises(ConfigError, match="is for several runs: bench, reproduce and tune take it"):
        compose_run(["method=tent", word])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_shards_hold_every_item_once(count):
    items = list(range(10))
    parts = [Shard(k, count).of(items) for k in range(1, count + 1)]
    assert sorted(item for part in parts for item in part) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
