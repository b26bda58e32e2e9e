"""What the shells are told when Tab is pressed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tta_bench.cli import app


def completed(**variables):
    done = CliRunner(env=variables).invoke(app, [], prog_name="tta-bench")
    return done.output.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("li", ["list"]),
        ("run meth", ["method="]),
        ("run method=ten", ["method=tent"]),
        ("bench dataset=scenes", ["dataset=scenes_c", "dataset=scenes_c_validation"]),
        ("run method=tent sett", ["setting="]),
        ("run seed=", []),
    ],
)
def test_in_fish_and_zsh_the_whole_word_is_completed(line, expected):
    told = completed(
        _TTA_BENCH_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS=f"tta-bench {line}",
    )
    assert [word for word in told if word in expected or "=" in word] == expected


@pytest.mark.parametrize(
    ("line", "position", "expected"),
    [
        ("run method = ten", 4, ["tent"]),
        ("run setting = gr", 4, ["gradual"]),
        ("run seed=1 method = ten", 5, ["tent"]),
        ("run setting =", 3, ["as_given", "batch_size_1"]),
        ("run se", 2, ["setting="]),
    ],
)
def test_bash_has_split_it_at_the_sign(line, position, expected):
    told = completed(_TTA_BENCH_COMPLETE="complete_bash", COMP_WORDS=f"tta-bench {line}", COMP_CWORD=str(position))
    assert told[: len(expected)] == expected
