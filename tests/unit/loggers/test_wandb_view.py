"""The saved view of W&B: what would be sent to the service, and the message if no view can be saved."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from tta_bench.loggers import wandb_view
from tta_bench.loggers.wandb_run import load_wandb
from tta_bench.loggers.wandb_view import make_view, tell_view

views = pytest.importorskip("wandb_workspaces.workspaces")


@pytest.fixture
def sent(monkeypatch):
    """What the package sends."""
    sent = []

    def receive(api, query, variables):
        sent.append(variables)
        return {"upsertView": {"view": {"id": "x", "name": variables["name"]}, "inserted": True}}

    monkeypatch.setattr(load_wandb(), "Api", lambda: None)
    monkeypatch.setattr(views.internal, "execute_graphql", receive)
    monkeypatch.setattr(views.interface, "get_app_url", lambda api: "https://service.example")
    return sent


def online_run(**summary):
    url = "https://service.example/me/project/runs/compare-abc"
    return SimpleNamespace(entity="me", project="project", name="compare shapes_c cdc", url=url, summary=summary)


def test_a_view_shows_runs_of_the_protocol_by_entry_along_the_stream(sent):
    url = make_view("me", "project", "compare shapes_c cdc", "abc", "running_error")
    (view,) = sent
    assert (view["entityName"], view["projectName"]) == ("me", "project")
    assert view["displayName"] == "compare shapes_c cdc abc"
    assert url.startswith("https://service.example/me/project?nw=")
    section = json.loads(view["spec"])["section"]
    (runs,) = section["runSets"]
    (condition,) = runs["filters"]["filters"]
    assert (condition["key"], condition["op"], condition["value"]) == (
        {"section": "config", "name": "protocol"}, "=", "abc",
    )  # fmt: skip
    (grouping,) = runs["grouping"]
    assert (grouping["section"], grouping["name"].removesuffix(".value")) == ("config", "entry")
    assert section["settings"]["xAxis"] == "stream/step"
    panels = section["panelBankConfig"]["sections"][0]["panels"]
    assert [p["config"]["metrics"] for p in panels][:2] == [["stream/running_error"], ["stream/error"]]


def test_a_new_view_is_told_and_remembered(sent):
    run = online_run()
    told = tell_view(run, "abc", "running_error")
    assert told == f"curves with the seeds of an entry as one: {run.summary['view']}"
    assert len(sent) == 1


def test_an_earlier_view_is_kept(sent):
    assert tell_view(online_run(view="https://earlier"), "abc", "running_error").endswith("as one: https://earlier")
    assert sent == []


def test_without_the_package_it_says_how_to_get_such_a_view(monkeypatch):
    monkeypatch.setattr(wandb_view.importlib.util, "find_spec", lambda name: None)
    assert tell_view(online_run(), "abc", "running_iou") == (
        "for curves, filter the runs of https://service.example/me/project by protocol = abc and group them by entry "
        "(pip install wandb-workspaces to have this view saved)"
    )


def test_a_view_that_cannot_be_saved_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    run = online_run()
    told = tell_view(run, "abc", "running_error")
    assert told.startswith("for curves, filter the runs of https://service.example/me/project by protocol = abc")
    assert "(the view could not be saved: " in told
    assert run.summary == {}
