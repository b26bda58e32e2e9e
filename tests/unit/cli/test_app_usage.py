"""A wrong option or argument is reported in one sentence with an example that works."""

from __future__ import annotations

import shlex

import pytest
import typer
from typer.testing import CliRunner

from tta_bench.cli.app import app


def commands(command, path=()):
    """Every command with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, part in command.commands.items():
        yield from commands(part, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
REQUIRING = [path for path, command in COMMANDS.items() if any(param.required for param in command.params)]


def answer(*words):
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(words), prog_name="tta-bench")
    assert done.exit_code == 2
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("path", REQUIRING, ids=" ".join)
def test_what_is_missing_is_one_line_with_a_whole_example(path):
    told = answer(*path)
    assert told.startswith("error: missing ")
    assert told.count("\n") == 1
    example = told.partition(f"For example: tta-bench {' '.join(path)} ")[2]
    words = shlex.split(example)
    missing = [param.name for param in COMMANDS[path].params if param.required and not given(param, words)]
    assert missing == []


def given(param, words):
    return any(option in words for option in param.opts) if param.param_type_name == "option" else bool(words)


def test_the_commands_for_data_are_among_those():
    assert {("data", "pack"), ("data", "corrupt"), ("data", "download")} <= set(REQUIRING)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("data pack", "error: missing option '--output'. For example: tta-bench data pack dataset="),
        ("verify x --batch 1", "error: no such option: --batch (Possible options: --batches). For example: tta-bench"),
        ("verify x --batches 0", "error: invalid value for '--batches': "),
        (
            "source train nope --output x",
            "error: invalid value for 'model': 'nope' is not one of 'scenes_vit', 'shapes_vit'. For example: tta-bench",
        ),
        ("data get", "error: no such command 'get'. See tta-bench data --help\n"),
        ("bnch", "error: no such command 'bnch'. Did you mean 'bench'? See tta-bench --help\n"),
        ("data corrupt --input", "error: option '--input' requires an argument. See tta-bench --help\n"),
        ("data list all", "error: got unexpected extra argument"),
    ],
)
def test_other_mistakes_are_one_line(words, told):
    found = answer(*words.split())
    assert found.startswith(told)
    assert found.count("\n") == 1


@pytest.mark.parametrize("words", [["data"], ["data", "--help"]])
def test_help_is_still_help(words):
    shown = CliRunner().invoke(app, words).output
    assert "Usage: " in shown
    assert "error" not in shown
