"""`config show` prints what runs would be composed of."""

from __future__ import annotations

import yaml
from typer.testing import CliRunner

from tta_bench.cli import app
from tta_bench.config.compose import compose_run, plain


def show(*words):
    return CliRunner().invoke(app, ["config", "show", *words])


def test_a_run_is_a_yaml_document_and_nothing_runs(tmp_path):
    words = ["method=tent", "method.lr=0.5", "seed=3", f"output={tmp_path}/runs"]
    done = show(*words)
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.output) == plain(compose_run(words).config)
    assert list(tmp_path.iterdir()) == []


def test_a_bench_is_a_document_for_each_run_with_its_words():
    done = show("methods=[source,tent]", "tent.lr=0.5")
    first, second = yaml.safe_load_all(done.output)
    assert "lr" not in first["method"]
    assert second["method"]["lr"] == 0.5
    assert "# method=tent method.lr=0.5 seed=0\n" in done.output
    assert [each["seed"] for each in yaml.safe_load_all(show("seeds=[4,5]", "methods=tent").output)] == [4, 5]


def test_a_wrong_word_is_one_sentence():
    done = show("method=tenr")
    assert done.exit_code == 2
    assert "there is no method 'tenr'; did you mean 'tent'?" in " ".join(done.output.split())
