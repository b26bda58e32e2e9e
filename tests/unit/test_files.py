"""Space on the disk is checked before anything is written."""

import shutil
from collections import namedtuple

import pytest

from tta_bench.files import WriteError, check_space, free_space


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """A disk with 1000 free bytes; only folders that exist can be asked."""
    usage = namedtuple("usage", "free")
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1000) if real(folder) else None)
    return tmp_path


def test_what_fits_may_be_written(disk):
    check_space(disk, 1000, "choose another")


def test_what_does_not_fit_is_refused_with_sizes_and_a_remedy(disk):
    told = rf"^this needs 2\.5 kB, but {disk} has only 1\.0 kB free: choose another --folder$"
    with pytest.raises(WriteError, match=told):
        check_space(disk, 2500, "choose another --folder")


def test_a_folder_that_does_not_exist_yet_lies_on_the_disk_of_one_that_does(disk, monkeypatch):
    assert free_space(disk / "runs" / "shapes_c") == 1000
    monkeypatch.chdir(disk)
    assert free_space(disk.relative_to(disk) / "runs") == 1000
