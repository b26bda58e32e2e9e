"""The command that uploads what W&B stored offline."""

from __future__ import annotations

import pytest

from tta_bench.loggers.wandb_offline import sync_command


@pytest.fixture
def folders(tmp_path):
    """Three runs of one setting: two offline, one without W&B."""
    home = tmp_path / "my runs" / "shapes_c" / "cdc"
    found = [home / method / "seed0-1a2b3c4d" for method in ("source", "tent", "sar")]
    for folder in found:
        folder.mkdir(parents=True)
    for folder in found[:2]:
        offline(folder)
    return found


def offline(folder):
    place = folder / "wandb" / "offline-run-20260101_000000-abc"
    place.mkdir(parents=True)
    (place / "run-abc.wandb").touch()


def test_one_run_is_named_and_several_are_a_pattern(folders):
    source, _, sar = folders
    home = source.parents[1]
    assert sync_command([source, sar]) == f"wandb sync '{source}/wandb/offline-run-'*"
    assert sync_command(folders) == f"wandb sync '{home}/'*/*/wandb/offline-run-*"


def test_their_comparison_is_uploaded_too(folders):
    home = folders[0].parents[1]
    offline(home)
    assert sync_command(folders).endswith(f" '{home}/wandb/offline-run-'*")


def test_what_was_uploaded_is_not_named(folders):
    source, tent, sar = folders
    assert sync_command([sar]) is None
    for folder in (source, tent):
        (folder / "wandb" / "offline-run-20260101_000000-abc" / "run-abc.wandb.synced").touch()
    assert sync_command(folders) is None
