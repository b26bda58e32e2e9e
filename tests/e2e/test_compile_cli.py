"""A run on a compiled network."""

from __future__ import annotations

import csv
import json

import pytest

from tests.helpers.commands import invoke

SMALL = [
    "run", "method=dpcore", "method.steps_new=3", "method.num_source=32", "dataset.num_images=20",
    "dataset.domains=[gaussian_noise,fog]", "setting.batch_size=16", "trainer=cpu", "threads=1",
]  # fmt: skip


@pytest.mark.slow
def test_a_compiled_run_is_another_run_with_the_same_errors(tmp_path):
    for mode in ("off", "default"):
        done = invoke(*SMALL, f"model.compile={mode}", home=tmp_path)
        assert done.exit_code == 0, done.output
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    rows = [list(csv.DictReader(path.read_text().splitlines())) for path in tmp_path.rglob("batches.csv")]
    assert sorted(result["config"]["model"]["compile"] for result in results) == ["default", "off"]
    assert [row["wrong"] for row in rows[0]] == [row["wrong"] for row in rows[1]]
    assert len(rows[0]) == 4
