"""Downloads of public data sets: addresses, checksums, resuming and unpacking."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn
from rich.table import Table

from tta_bench.console import progress_bar, say
from tta_bench.files import check_space, writing
from tta_bench.suggestions import did_you_mean

ATTEMPTS = 5  # in a row without progress, before giving up
PAUSE = 2.0  # seconds before the second attempt; doubled before each further one
TIMEOUT = 60.0  # seconds without a response
CHUNK = 1 << 20
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # HTTP errors that may be temporary
_ZENODO = "https://zenodo.org/records/{}/files/{}?download=1"
_CIFAR = "https://www.cs.toronto.edu/~kriz/{}"
_HENDRYCKS = "https://people.eecs.berkeley.edu/~hendrycks/{}"


@dataclass(frozen=True)
class Archive:
    """A published tar file.

    Args:
        url: Its address.
        md5: Its published checksum; None if not known for certain.
        size: Its size in bytes; None if not known for certain.
        folder: Where it is unpacked, relative to the user's folder.
    """

    url: str
    md5: str | None = None
    size: int | None = None
    folder: str = ""

    @property
    def name(self) -> str:
        """File name."""
        return self.url.partition("?")[0].rpartition("/")[2]


def _imagenet_c(name: str, md5: str, size: int) -> Archive:
    return Archive(_ZENODO.format(2235448, name), md5, size, "ImageNet-C")


# Checksums of Zenodo and of CIFAR are the publishers'; those of ImageNet-R and -A are the ones in public loaders.
PUBLIC: dict[str, tuple[Archive, ...]] = {
    "cifar10_c": (
        Archive(_ZENODO.format(2535967, "CIFAR-10-C.tar"), "56bf5dcef84df0e2308c6dcbcbbd8499", 2_918_471_680),
    ),
    "cifar100_c": (
        Archive(_ZENODO.format(3555552, "CIFAR-100-C.tar"), "11f0ed0f1191edbf9fa23466ae6021d3", 2_918_473_216),
    ),
    "imagenet_c": (
        _imagenet_c("noise.tar", "e80562d7f6c3f8834afb1ecf27252745", 22_565_673_785),
        _imagenet_c("blur.tar", "2d8e81fdd8e07fef67b9334fa635e45c", 7_112_704_951),
        _imagenet_c("weather.tar", "33ffea4db4d93fe4a428c40a6ce0c25d", 12_797_438_995),
        _imagenet_c("digital.tar", "89157860d7b10d5797849337ca2e5c03", 7_757_510_705),
    ),
    "imagenet_c_validation": (_imagenet_c("extra.tar", "d492dfba5fc162d8ec2c3cd8ee672984", 15_789_490_144),),
    "cifar10": (Archive(_CIFAR.format("cifar-10-binary.tar.gz"), "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),),
    "cifar100": (Archive(_CIFAR.format("cifar-100-binary.tar.gz"), "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),),
    "imagenet_r": (Archive(_HENDRYCKS.format("imagenet-r.tar"), "a61312130a589d0ca1a8fca1f2bd3337"),),
    "imagenet_a": (Archive(_HENDRYCKS.format("imagenet-a.tar"), "c3e55429088dc681f30d81f4726b6595", 687_552_512),),
    "imagenet_v2": (
        Archive("https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz"),
    ),
}


def download(name: str, folder: str | Path, console: Console) -> None:
    """Download, check and unpack a public data set.

    After an interruption, the same call continues where the earlier one stopped; it does nothing if all is complete.

    Args:
        name: A key of ``PUBLIC``.
        folder: The output folder. Archives are removed once they are unpacked.
        console: Shows the progress.

    Raises:
        ValueError: If the name is unknown or the server does not send what was published.
        WriteError: If the folder cannot be written, or the disk is too small.
    """
    if name not in PUBLIC:
        raise ValueError(f"there is no public data set {name!r}{did_you_mean(name, PUBLIC)}")
    folder = Path(folder).expanduser()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        missing = [archive for archive in PUBLIC[name] if not _done(archive, folder).exists()]
        sizes = [archive.size or 0 for archive in missing]
        needed = sum(sizes) + max(sizes, default=0) - sum(_received(archive, folder) for archive in missing)
        check_space(folder, needed, "choose another --folder")
        with progress_bar(console, DownloadColumn(), TransferSpeedColumn()) as bar:
            for archive in missing:
                say(console, f"{archive.name} from {archive.url}")
                fetch(archive, folder, bar)
                unpack(folder / archive.name, folder / archive.folder, bar)
                _done(archive, folder).write_text(f"{archive.url}\n")
                (folder / archive.name).unlink()
    say(console, f"{name} is in {folder}")


def downloads_table() -> Table:
    """Table of the public data sets with their archives, sizes and whether a checksum is known."""
    table = Table("name", "archives", "size", "checksum")
    for name, archives in PUBLIC.items():
        sizes = [archive.size for archive in archives]
        size = f"{sum(filter(None, sizes)) / 1e9:.1f} GB" if all(sizes) else "unknown"
        checked = "MD5" if all(archive.md5 for archive in archives) else "none"
        table.add_row(name, ", ".join(archive.name for archive in archives), size, checked)
    return table


def fetch(archive: Archive, folder: Path, bar: Progress) -> Path:
    """Download one file, resuming an earlier attempt; it gets its final name when it is complete and verified.

    Raises:
        ValueError: If the server rejects the request, sends something else, or stops sending after several attempts.
    """
    target, part = folder / archive.name, folder / f"{archive.name}.part"
    if target.exists():  # an earlier call was interrupted while it unpacked
        return target
    # Not pooch: it verifies checksums, but restarts an interrupted download from the first byte, and these have
    # gigabytes.
    task = bar.add_task(archive.name, total=archive.size)
    failures = 0
    while True:
        before = _received(archive, folder)
        try:
            _receive(archive, part, lambda position: bar.update(task, completed=position))
            break
        except (OSError, http.client.HTTPException) as error:
            if not _is_passing(error):
                raise
            failures = 1 if _received(archive, folder) > before else failures + 1
            if failures >= ATTEMPTS:
                raise ValueError(
                    f"{archive.url} failed {ATTEMPTS} times in a row ({error}): the {_received(archive, folder)} bytes "
                    "received so far are kept; run the same command later to resume"
                ) from error
            time.sleep(PAUSE * 2 ** (failures - 1))
    _check_md5(archive, part, lambda position: bar.update(task, completed=position, description=f"check {part.name}"))
    bar.remove_task(task)
    return part.replace(target)


def _receive(archive: Archive, part: Path, report: Callable[[int], Any]) -> None:
    """Attempt to download the missing bytes and append them to the partial file."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"tta_bench/{version('tta_bench')}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(archive.url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send: the partial file is either complete or of another file
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return
            part.unlink()
            raise ConnectionError("the partial file is longer than the file") from error
        if error.code in _PASSING:
            raise
        raise ValueError(f"{archive.url} returned {error.code} ({error.reason}): has it moved?") from error
    with response:
        if response.headers.get_content_type() == "text/html":
            raise ValueError(_web_page(archive))
        start = have if response.status == 206 else 0  # a server without range requests sends the whole file again
        length = response.headers.get("Content-Length")
        total = archive.size if length is None else start + int(length)
        if archive.size not in (None, total):
            raise ValueError(f"{archive.url} has {total} bytes, but {archive.size} were published: has it changed?")
        check_space(part.parent, 2 * (total or 0) - start, "choose another --folder")
        position = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while chunk := response.read(CHUNK):
                if position == 0 and chunk.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
                    raise ValueError(_web_page(archive))
                position += file.write(chunk)
                report(position)
    if total is not None and position < total:
        raise ConnectionError(f"received {position} of {total} bytes")


def _is_passing(error: Exception) -> bool:
    """Whether another attempt may succeed: the network failed, not the disk."""
    network = (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException)
    return isinstance(error, network)


def _web_page(archive: Archive) -> str:
    return f"{archive.url} sends a web page instead of the file: open it in a browser and save the file from there"


def _check_md5(archive: Archive, part: Path, report: Callable[[int], Any]) -> None:
    if archive.md5 is None:
        return
    found = md5_of(part, report)
    if found != archive.md5:
        part.unlink()
        raise ValueError(
            f"{archive.url} sent a file with MD5 {found}, but {archive.md5} was published: it was "
            "removed; run the same command to download it again"
        )


def md5_of(path: Path, report: Callable[[int], Any] = lambda position: None) -> str:
    """MD5 of a file; ``report`` is called with the number of bytes read so far."""
    digest, position = hashlib.md5(usedforsecurity=False), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            position += len(chunk)
            report(position)
    return digest.hexdigest()


def unpack(file: Path, folder: Path, bar: Progress | None = None) -> None:
    """Unpack a tar file, rejecting devices and members outside the folder.

    Raises:
        ValueError: If the file is damaged or contains such a member.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("this Python cannot unpack safely: use 3.11.4, 3.12 or later")
    task = bar.add_task(f"unpack {file.name}", total=file.stat().st_size) if bar else None
    try:
        with file.open("rb") as stream, tarfile.open(fileobj=stream) as archive:
            while (member := archive.next()) is not None:
                archive.extract(member, folder, filter="data")
                archive.members.clear()  # type: ignore[attr-defined]  # or a million members fill the memory
                if bar and task is not None:
                    bar.update(task, completed=stream.tell())
    except tarfile.FilterError as error:
        raise ValueError(f"unpacking {file} stopped: {error}") from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, KeyError) as error:
        raise ValueError(f"{file} is damaged or not a tar file: {error}") from error
    if bar and task is not None:
        bar.remove_task(task)


def _done(archive: Archive, folder: Path) -> Path:
    """File that marks an archive as unpacked."""
    return folder / f".{archive.name}.unpacked"


def _received(archive: Archive, folder: Path) -> int:
    files = (folder / archive.name, folder / f"{archive.name}.part")
    return sum(file.stat().st_size for file in files if file.exists())
