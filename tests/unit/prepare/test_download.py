"""Downloads from a server that misbehaves in many ways."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import tarfile
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from tta_bench.files import WriteError
from tta_bench.prepare import download as downloads
from tta_bench.prepare.download import PUBLIC, Archive, download, downloads_table, unpack


def tar_of(files, mode="w"):
    """A tar file of names and contents, or of ready members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = 0 if isinstance(content, tarfile.TarInfo) else len(content)
            archive.addfile(member, None if isinstance(content, tarfile.TarInfo) else io.BytesIO(content))
    return stream.getvalue()


CONTENT = {"set/a.npy": b"a" * 30_000, "set/b.npy": b"b" * 30_000}
TAR = tar_of(CONTENT)


class Server(ThreadingHTTPServer):
    """Serves one file; how is said by attributes.

    Attributes:
        cuts: For each request to come, the bytes after which the connection is cut.
        answers: For each request to come, a status to answer with instead of the file.
        ranges: Whether the Range header is honoured.
        length: Whether the length is told.
        seen: The Range header of each request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.type = TAR, "application/x-tar"
        self.cuts, self.answers, self.ranges, self.length, self.seen = [], [], True, True, []

    def handle_error(self, request, client_address):
        """Ignore clients that hang up."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.seen.append(wanted)
        if server.answers:
            self.send_error(server.answers.pop(0))
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start and start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", server.type)
        if server.length:
            self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        stop = start + server.cuts.pop(0) if server.cuts else len(server.content)
        self.wfile.write(server.content[start:stop])
        self.close_connection = True

    def log_message(self, *_):
        """Keep quiet."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    monkeypatch.setattr(downloads, "CHUNK", 4096)
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def publish(server, monkeypatch):
    """Makes ``toy`` a public data set on the server; returns its archive."""

    def make(*, checked=True, size=None, name="set.tar", folder=""):
        md5 = hashlib.md5(server.content).hexdigest() if checked else None
        archive = Archive(f"http://127.0.0.1:{server.server_port}/files/{name}?download=1", md5, size, folder)
        monkeypatch.setitem(PUBLIC, "toy", (archive,))
        return archive

    return make


def get(folder):
    console = Console(file=io.StringIO(), width=300)
    download("toy", folder, console)
    return console.file.getvalue()


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix == ".npy"}


def test_a_data_set_is_downloaded_checked_and_unpacked(server, publish, tmp_path):
    publish(size=len(TAR), folder="below")
    get(tmp_path / "new")
    assert files(tmp_path / "new" / "below") == CONTENT
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [".set.tar.unpacked", "below"]


def test_what_is_there_is_not_asked_for_again(server, publish, tmp_path):
    publish()
    get(tmp_path)
    assert "toy is in" in get(tmp_path)
    assert len(server.seen) == 1


class TestACutConnection:
    @pytest.mark.parametrize("told_by", ["server", "table"])
    def test_goes_on_where_it_was_cut(self, server, publish, tmp_path, told_by):
        server.length, server.cuts = told_by == "server", [10_000, 15_000]
        publish(size=len(TAR) if told_by == "table" else None)
        get(tmp_path)
        assert files(tmp_path) == CONTENT
        assert server.seen == [None, "bytes=10000-", "bytes=25000-"]

    def test_of_a_file_of_unknown_length_fails_the_check(self, server, publish, tmp_path):
        server.length, server.cuts = False, [10_000]
        publish()
        with pytest.raises(ValueError, match="it was removed"):
            get(tmp_path)

    def test_starts_anew_at_a_server_without_ranges(self, server, publish, tmp_path):
        server.ranges, server.cuts = False, [40_000]
        publish()
        get(tmp_path)
        assert files(tmp_path) == CONTENT

    def test_is_given_up_after_some_attempts_without_a_byte_and_taken_up_by_the_next_call(
        self, server, publish, tmp_path
    ):
        server.cuts = [5_000] + [0] * downloads.ATTEMPTS
        archive = publish()
        with pytest.raises(ValueError, match=r"failed 5 times in a row .*: the 5000 bytes received so far are kept"):
            get(tmp_path)
        assert (tmp_path / f"{archive.name}.part").stat().st_size == 5_000
        server.cuts, server.seen = [], []
        get(tmp_path)
        assert (server.seen, files(tmp_path)) == (["bytes=5000-"], CONTENT)

    def test_is_not_given_up_while_bytes_come(self, server, publish, tmp_path):
        server.cuts = [7_000] * 8
        publish()
        get(tmp_path)
        assert files(tmp_path) == CONTENT
        assert len(server.seen) == 9

    def test_before_the_first_byte_is_tried_again_too(self, publish, server, tmp_path, monkeypatch):
        publish()
        attempts = []

        def unreachable(*_, **__):
            attempts.append(1)
            raise downloads.urllib.error.URLError("no route to host")

        monkeypatch.setattr(downloads.urllib.request, "urlopen", unreachable)
        with pytest.raises(ValueError, match="no route to host"):
            get(tmp_path)
        assert len(attempts) == downloads.ATTEMPTS


class TestAnAnswer:
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_that_may_pass_is_tried_again(self, server, publish, tmp_path, status):
        server.answers = [status, status]
        publish()
        get(tmp_path)
        assert files(tmp_path) == CONTENT

    @pytest.mark.parametrize("status", [403, 404, 410])
    def test_that_will_stay_is_told_at_once(self, server, publish, tmp_path, status):
        server.answers = [status]
        publish()
        with pytest.raises(ValueError, match=rf"set\.tar\?download=1 returned {status}"):
            get(tmp_path)
        assert len(server.seen) == 1


class TestAnotherFile:
    @pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
    @pytest.mark.parametrize("page", [b"<!DOCTYPE html><p>Quota exceeded", b"\n<HTML><body>sign in"])
    def test_a_web_page_is_recognised_and_not_kept(self, server, publish, tmp_path, kind, page):
        server.content, server.type = page, kind
        publish(checked=False)
        with pytest.raises(ValueError, match="sends a web page instead of the file"):
            get(tmp_path)
        assert not [p for p in tmp_path.iterdir() if p.stat().st_size]

    def test_a_wrong_checksum_removes_the_file(self, server, publish, tmp_path):
        right = publish()
        server.content = TAR[:-1] + b"x"
        with pytest.raises(ValueError, match=f"but {right.md5} was published: it was removed"):
            get(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_wrong_size_is_noticed_before_the_download(self, server, publish, tmp_path):
        publish(size=len(TAR) + 1)
        with pytest.raises(ValueError, match=f"has {len(TAR)} bytes, but {len(TAR) + 1} were published"):
            get(tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("checked", [True, False])
    def test_a_part_that_is_longer_than_the_file_is_thrown_away(self, server, publish, tmp_path, checked):
        publish(checked=checked)
        (tmp_path / "set.tar.part").write_bytes(TAR + b"more")
        get(tmp_path)
        assert files(tmp_path) == CONTENT

    def test_a_part_that_is_whole_is_taken(self, server, publish, tmp_path):
        publish()
        (tmp_path / "set.tar.part").write_bytes(TAR)
        get(tmp_path)
        assert (files(tmp_path), server.seen) == (CONTENT, [f"bytes={len(TAR)}-"])

    def test_a_part_of_another_file_fails_the_check(self, server, publish, tmp_path):
        publish()
        (tmp_path / "set.tar.part").write_bytes(b"other")
        with pytest.raises(ValueError, match="it was removed"):
            get(tmp_path)
        get(tmp_path)
        assert files(tmp_path) == CONTENT


class TestTheDisk:
    @pytest.mark.parametrize("known", [True, False])
    def test_that_is_too_small_for_archive_and_content_is_noticed_before_a_byte_comes(
        self, server, publish, tmp_path, monkeypatch, known
    ):
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2 * len(TAR) - 1))
        publish(size=len(TAR) if known else None)
        with pytest.raises(WriteError, match=r"this needs .* kB, but .* has only .* kB free: choose another --folder"):
            get(tmp_path)
        assert (list(tmp_path.iterdir()), len(server.seen)) == ([], 0 if known else 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2 * len(TAR)))
        get(tmp_path)

    def test_what_has_come_already_needs_no_space(self, server, publish, tmp_path, monkeypatch):
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2 * len(TAR) - 1000))
        publish(size=len(TAR))
        (tmp_path / "set.tar.part").write_bytes(TAR[:1000])
        get(tmp_path)
        assert files(tmp_path) == CONTENT

    def test_that_cannot_be_written_is_not_tried_again(self, server, publish, tmp_path):
        publish()
        (tmp_path / "file").write_text("")
        with pytest.raises(WriteError, match="cannot write"):
            get(tmp_path / "file")
        assert server.seen == []


class TestUnpacking:
    def outside(self, name, **attributes):
        member = tarfile.TarInfo(name)
        for key, value in attributes.items():
            setattr(member, key, value)
        return member

    @pytest.mark.parametrize(
        "members",
        [
            {"../evil.npy": b"x"},
            {"set/../../evil.npy": b"x"},
            {"link": ("link", {"type": tarfile.SYMTYPE, "linkname": ".."}), "link/evil.npy": b"x"},
            {"link": ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc"})},
            {"pipe": ("pipe", {"type": tarfile.FIFOTYPE})},
        ],
        ids=["parent", "hidden parent", "through a link", "absolute link", "pipe"],
    )
    def test_members_that_leave_the_folder_are_refused(self, tmp_path, members):
        members = {k: self.outside(v[0], **v[1]) if isinstance(v, tuple) else v for k, v in members.items()}
        (tmp_path / "x.tar").write_bytes(tar_of(members))
        with pytest.raises(ValueError, match=r"unpacking .*x\.tar stopped"):
            unpack(tmp_path / "x.tar", tmp_path / "inside")
        assert not list(tmp_path.rglob("evil.npy"))

    def test_an_absolute_name_stays_inside(self, tmp_path):
        (tmp_path / "x.tar").write_bytes(tar_of({f"/{tmp_path.name}/evil.npy": b"x"}))
        unpack(tmp_path / "x.tar", tmp_path / "inside")
        assert files(tmp_path / "inside") == {f"{tmp_path.name}/evil.npy": b"x"}

    @pytest.mark.parametrize("cut", [0, 100, 30_000])
    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    def test_a_damaged_archive_is_named(self, tmp_path, mode, cut):
        whole = tar_of({"a.npy": bytes(range(256)) * 400}, mode)
        (tmp_path / "x.tar").write_bytes(whole[: min(cut, len(whole) // 2)])
        with pytest.raises(ValueError, match=r"x\.tar is damaged or not a tar file"):
            unpack(tmp_path / "x.tar", tmp_path / "inside")

    def test_a_compressed_archive_is_unpacked(self, tmp_path):
        (tmp_path / "x.tar.gz").write_bytes(tar_of(CONTENT, "w:gz"))
        unpack(tmp_path / "x.tar.gz", tmp_path / "inside")
        assert files(tmp_path / "inside") == CONTENT

    def test_an_interruption_is_followed_by_unpacking_alone(self, server, publish, tmp_path, monkeypatch):
        publish()
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(downloads, "unpack", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            get(tmp_path)
        assert files(tmp_path) == {}
        get(tmp_path)
        assert (files(tmp_path), len(server.seen)) == (CONTENT, 1)


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="'imagenetc'; did you mean 'imagenet_c'"):
        download("imagenetc", tmp_path, Console(file=io.StringIO()))


def test_the_table_of_public_sets():
    assert len(PUBLIC) == downloads_table().row_count >= 9
    archives = [archive for group in PUBLIC.values() for archive in group]
    assert len({archive.name for archive in archives}) == len(archives)
    for archive in archives:
        assert archive.url.startswith("https://")
        assert archive.name.endswith((".tar", ".tar.gz"))
        assert archive.md5 is None or len(bytes.fromhex(archive.md5)) == 16
