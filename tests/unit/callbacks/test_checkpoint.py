"""Saved states: two complete ones on disk, or none; and what a run folder says about resuming."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import resource
import signal

import lightning.pytorch as L
import pytest
import torch
from rich.console import Console

from tta_bench import testing
from tta_bench.callbacks import AdaptationMonitor, StateFiles, StreamCheckpoint
from tta_bench.callbacks import checkpoint as checkpoint_module
from tta_bench.callbacks.interrupts import Interrupted, Interrupts
from tta_bench.callbacks.state_files import DamagedStateError
from tta_bench.config.words import ConfigError
from tta_bench.experiments.resume import code_sha256, find_state, locked
from tta_bench.files import WriteError, sync
from tta_bench.methods import Tent
from tta_bench.results.rows import BatchRow, Tally
from tta_bench.results.run_folder import RowWriter, read_rows


def state(step):
    return {"format": 1, "next_step": step, "weight": torch.full((1000,), float(step))}


@pytest.fixture
def files(tmp_path):
    files = StateFiles(tmp_path)
    for step in (1, 2, 3):
        files.write(state(step))
    return files


class TestStateFiles:
    def test_the_two_newest_are_kept_and_no_draft(self, files, tmp_path):
        assert (files.read(files.newest)["next_step"], files.read(files.previous)["next_step"]) == (3, 2)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["state.previous.pt", "state.pt"]

    @pytest.mark.parametrize("damage", ["empty", "garbage", "half", "one bit", "another file of torch"])
    def test_a_damaged_one_is_noticed(self, files, damage):
        content = files.newest.read_bytes()
        flipped = bytearray(content)
        flipped[content.index(torch.full((4,), 3.0).numpy().tobytes()) + 5] ^= 1
        torch.save([1], files.previous)
        files.newest.write_bytes(
            {
                "empty": b"",
                "garbage": b"garbage" * 100,
                "half": content[: len(content) // 2],
                "one bit": bytes(flipped),
                "another file of torch": files.previous.read_bytes(),
            }[damage]
        )
        with pytest.raises(DamagedStateError, match=r"state\.pt is damaged"):
            files.read(files.newest)

    def test_nothing_but_tensors_numbers_and_strings_is_loaded(self, files):
        torch.save({"format": 1, "code": Tally}, files.newest)
        with pytest.raises(DamagedStateError):
            files.read(files.newest)

    def test_a_missing_one_is_not_a_damaged_one(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            StateFiles(tmp_path).read(tmp_path / "state.pt")

    @pytest.mark.parametrize("call", ["save", "fsync", "replace"])
    def test_a_full_disk_is_one_sentence_and_loses_nothing(self, files, monkeypatch, tmp_path, call):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        target = {"save": "torch.save", "fsync": "os.fsync", "replace": "pathlib.Path.replace"}[call]
        with monkeypatch.context() as patch:
            patch.setattr(target, full)
            with pytest.raises(WriteError, match=r"cannot write .*state\.pt \(No space left on device\): free"):
                files.write(state(4))
        assert (files.read(files.newest)["next_step"], files.read(files.previous)["next_step"]) == (3, 2)
        assert len(list(tmp_path.iterdir())) == 2

    def test_killed_between_the_two_moves_the_previous_state_is_whole(self, files):
        files.newest.replace(files.previous)
        files.write(state(4))
        assert (files.read(files.newest)["next_step"], files.read(files.previous)["next_step"]) == (4, 3)


def rows(count):
    mixed = {"fog": (3, 1), "snow": (5, 2)}
    return [
        BatchRow(t, mixed if t % 2 else {"fog": (8, t)}, 8, 4, 0.25, {"coreset_size": 1.0 + t}) for t in range(count)
    ]


def write_rows(path, some, **kwargs):
    writer, tally = RowWriter(path, **kwargs), Tally()
    for row in some:
        tally.add(row)
        writer.write(row, tally)
    writer.close()
    return sync(path)


class TestRows:
    def test_come_back_as_they_were(self, tmp_path):
        size = write_rows(tmp_path / "batches.csv", rows(5))
        assert size == (tmp_path / "batches.csv").stat().st_size
        assert read_rows(tmp_path / "batches.csv", size) == rows(5)

    def test_of_a_method_without_coreset_come_back_too(self, tmp_path):
        some = [BatchRow(t, {"fog": (8, 1)}, 8, 0, 0.5, {"entropy": 0.1 + 0.2 * t}) for t in range(2)]
        assert read_rows(tmp_path / "b.csv", write_rows(tmp_path / "b.csv", some)) == some

    def test_beyond_the_size_do_not_count_and_missing_ones_are_noticed(self, tmp_path):
        path = tmp_path / "batches.csv"
        size = write_rows(path, rows(3))
        write_rows(path, rows(5))
        assert read_rows(path, size) == rows(3)
        os.truncate(path, size - 5)
        with pytest.raises(ValueError, match="missing rows"):
            read_rows(path, size)
        with pytest.raises(ValueError, match="missing rows"):
            read_rows(tmp_path / "none.csv", size)

    def test_go_on_under_the_same_header(self, tmp_path):
        whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
        write_rows(whole, rows(4)), write_rows(parts, rows(2))
        writer, tally = RowWriter(parts, goes_on=True), Tally()
        for row in rows(4):
            tally.add(row)
            if row.step >= 2:
                writer.write(row, tally)
        writer.close()
        assert parts.read_bytes() == whole.read_bytes()

    def test_a_full_disk_leaves_no_half_row(self, tmp_path):
        path = tmp_path / "batches.csv"
        size = write_rows(path, rows(2))
        writer = RowWriter(path, goes_on=True)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))  # the disk takes ten bytes more
        try:
            with pytest.raises(WriteError, match=r"batches\.csv \(File too large\)"):
                writer.write(rows(3)[2], Tally())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.close()
        assert path.stat().st_size == size


MINE = {"method.lr": "0.1", "stream_sha256": '"aa"'}  # the identity of the run that asks


class TestGoingOn:
    """What ``find_state`` makes of a folder."""

    @pytest.fixture
    def folder(self, tmp_path):
        for step in (2, 4):
            size = write_rows(tmp_path / "batches.csv", rows(step))
            StateFiles(tmp_path).write({**state(step), "rows_bytes": size, "identity": MINE})
        write_rows(tmp_path / "batches.csv", rows(5))
        return tmp_path

    def find(self, folder, **other):
        console = Console(record=True, width=200, quiet=False, file=io.StringIO())
        with console.file:
            found = find_state(folder, {**MINE, **other}, "tent", console)
        return found, console.export_text()

    def test_from_the_newest_state_cuts_rows_beyond_it(self, folder):
        found, said = self.find(folder)
        assert (found.step, list(found.rows), said) == (4, rows(4), "tent: resumed at batch 4\n")
        assert (folder / "batches.csv").stat().st_size == found.state["rows_bytes"]

    def test_from_the_state_before_a_damaged_one_says_so_and_drops_it(self, folder):
        (folder / "state.pt").write_bytes(b"garbage")
        found, said = self.find(folder)
        assert found.step == 2
        assert "state.pt is damaged" in said
        assert "resumed at batch 2 from the previous state" in said
        assert not (folder / "state.pt").exists()

    def test_from_the_state_before_rows_that_are_lost(self, folder):
        os.truncate(folder / "batches.csv", StateFiles.read(folder / "state.pt")["rows_bytes"] - 1)
        found, said = self.find(folder)
        assert found.step == 2
        assert "missing rows" in said

    def test_with_both_states_damaged_starts_over_and_says_so(self, folder):
        for name in ("state.pt", "state.previous.pt"):
            (folder / name).write_bytes(b"")
        found, said = self.find(folder)
        assert found is None
        assert said.endswith("tent: starting over\n")

    def test_without_states_starts_over_silently(self, tmp_path):
        assert self.find(tmp_path) == (None, "")

    @pytest.mark.parametrize(
        ("other", "named"),
        [
            ({"method.lr": "0.2"}, "method.lr was 0.1 and is 0.2"),
            ({"stream_sha256": '"bb"'}, "stream_sha256 was aa and is bb"),
            ({"versions.torch": '"9"'}, "versions.torch was nothing and is 9"),
        ],
    )
    def test_from_a_state_of_another_run_is_refused_and_changes_nothing(self, folder, other, named):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(ConfigError, match=named):
            self.find(folder, **other)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before

    def test_from_a_state_of_another_format_is_refused(self, folder):
        StateFiles(folder).write({"format": 99})
        with pytest.raises(ConfigError, match="format was 99 and is 1"):
            self.find(folder)


def test_the_code_of_a_method_and_of_its_bases_is_part_of_its_identity(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mybase.py").write_text("from tta_bench.methods import Tent\nclass Base(Tent): pass\n")
    (tmp_path / "mymethod.py").write_text("from mybase import Base\nclass Mine(Base): pass\n")
    from mymethod import Mine

    method, plain = Mine(testing.toy_backbone()), Tent(testing.toy_backbone())
    before = code_sha256(method)
    assert before == code_sha256(method) != code_sha256(plain)
    (tmp_path / "mybase.py").write_text("# another\n")
    assert code_sha256(method) != before


def _holds(folder, answer):
    try:
        with locked(folder):
            answer.put("free")
    except ConfigError as error:
        answer.put(str(error))


def _sleeps(awake):
    awake.set()
    signal.pause()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
class TestTheLock:
    def ask(self, folder):
        context = multiprocessing.get_context("fork")
        answer = context.Queue()
        process = context.Process(target=_holds, args=(folder, answer))
        process.start()
        said = answer.get(timeout=60)
        process.join()
        return said

    def test_a_second_process_is_told_which_folder_and_what_to_do(self, tmp_path):
        with locked(tmp_path):
            assert self.ask(tmp_path) == (
                f"another process is using {tmp_path}: wait until it ends, or choose another output=..."
            )
        assert list(tmp_path.iterdir()) == []

    def test_a_loader_process_does_not_hold_it(self, tmp_path):
        context = multiprocessing.get_context("fork")
        awake = context.Event()
        with locked(tmp_path):
            child = context.Process(target=_sleeps, args=(awake,))
            child.start()
            assert awake.wait(60)
        try:
            with locked(tmp_path):
                pass
        finally:
            child.kill()
            child.join()


class TestInterrupts:
    def test_the_first_signal_is_noted_and_the_second_obeyed(self):
        before = signal.getsignal(signal.SIGTERM)
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.signum == signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) == before
        with pytest.raises(Interrupted, match="interrupted at batch 3: run the same command again") as error:
            interrupts.obey(3)
        assert error.value.code == 143


class TestWhenAStateIsWritten:
    def steps(self, tmp_path, monkeypatch, seconds_per_write=0.0, **when):
        clock, written = [0.0], []
        monkeypatch.setattr(checkpoint_module.time, "monotonic", lambda: clock[0])
        monitor = AdaptationMonitor(rows=tmp_path / "batches.csv")
        checkpoint = StreamCheckpoint(StateFiles(tmp_path), monitor, **when)

        def write(state):
            written.append(state["next_step"])
            clock[0] += seconds_per_write

        class Tick(L.Callback):
            def on_test_batch_start(self, *_):
                clock[0] += 1

        monkeypatch.setattr(checkpoint.files, "write", write)
        testing.run_stream(Tent(testing.toy_backbone()), testing.toy_data(batch_size=1), monitor, Tick(), checkpoint)
        return written

    def test_by_batches(self, tmp_path, monkeypatch):
        assert self.steps(tmp_path, monkeypatch, every=20) == [20, 40]

    def test_by_time(self, tmp_path, monkeypatch):
        assert self.steps(tmp_path, monkeypatch, seconds=10) == [10, 20, 30, 40, 50]

    def test_by_time_less_often_where_writing_is_slow(self, tmp_path, monkeypatch):
        assert self.steps(tmp_path, monkeypatch, seconds=10, seconds_per_write=0.4) == [10, 31]

    def test_not_after_the_last_batch(self, tmp_path, monkeypatch):
        assert self.steps(tmp_path, monkeypatch, every=51) == []

    def test_never(self, tmp_path, monkeypatch):
        assert self.steps(tmp_path, monkeypatch, seconds=None) == []
