"""Several processes of this machine: the same bytes as one by one, whatever happens to a process."""

from __future__ import annotations

import pytest

from tests.helpers.launched import OWN, contents, forget_misbehaving, launched, misbehaving
from tta_bench.config.words import ConfigError


@pytest.fixture(autouse=True)
def _own_methods(tmp_path, monkeypatch):
    misbehaving(tmp_path, monkeypatch)
    yield
    forget_misbehaving()


def test_runs_are_those_of_one_process_byte_for_byte(tmp_path, monkeypatch):
    words = ["methods=[source,tent,cotta,dpcore]", "seeds=[0,1]", *OWN]
    one, _ = launched(tmp_path / "one", monkeypatch, *words)
    two, said = launched(tmp_path / "two", monkeypatch, *words, "launcher.workers=2")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "two")) == 8
    assert [(r["method"], r["seed"], r["mean_error"]) for r in two] == [
        (r["method"], r["seed"], r["mean_error"]) for r in one
    ]
    assert sum(" of 8: " in line for line in said.splitlines()) == 8
    long, short = ([r["started"] for r in two if r["method"] == name] for name in ("dpcore", "source"))
    assert max(long) <= min(short)


def test_a_killed_process_costs_nothing_but_time_and_no_method_stops_another(tmp_path, monkeypatch):
    own = [f"misbehaving.{name}" for name in ("DiesOnce", "DiesAlways", "Raises", "ReturnsNaN")]
    results, said = launched(tmp_path / "two", monkeypatch, f"methods=[{','.join(own)},tent]", "launcher.workers=2")
    once, always, raises, nan, tent = results
    assert once["status"] == tent["status"] == "done"
    assert "DiesOnce seed 0: its process was killed by SIGKILL; it continues from its last state elsewhere" in said
    assert "DiesOnce seed 0: resumed at batch 3" in said
    assert always["status"] == "failed"
    assert (
        "its worker died twice at batch 3, probably because memory ran out: its process was killed" in always["error"]
    )
    assert raises["error"] == "RuntimeError: this method has a bug"
    assert nan["status"] == "failed"
    assert "not finite" in nan["error"]
    whole, _ = launched(tmp_path / "one", monkeypatch, "methods=[misbehaving.DiesOnce]")  # its mark is there: it lives
    (name,) = contents(tmp_path / "one")
    assert contents(tmp_path / "one")[name]["rows"] == contents(tmp_path / "two")[name]["rows"]
    assert whole[0]["mean_error"] == once["mean_error"]


def test_what_cannot_start_is_refused_before_anything_runs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"dataset\.severity"):
        launched(tmp_path / "two", monkeypatch, "methods=[source,tent]", "dataset.severity=9", "launcher.workers=2")
    with pytest.raises(ConfigError, match="take one device each"):
        launched(tmp_path / "two", monkeypatch, "methods=[source]", "trainer.devices=2", "launcher.workers=2")
    assert not (tmp_path / "two" / "runs").exists()
