"""Times at which photos were taken, from tables or from EXIF data."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from PIL import ExifTags, Image

_CAMERA = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d:\d\d:\d\d)(.*)")  # the time format of EXIF


def read_time(text: str) -> datetime:
    """Parse a time in ISO 8601 (``2024-05-31 14:03:00``, with or without a zone), EXIF format, or seconds since 1970.

    Raises:
        ValueError: If it has none of these formats.

    Example:
        >>> read_time("2024:05:31 14:03:00") == read_time("2024-05-31T14:03")
        True
        >>> read_time("86400").isoformat()
        '1970-01-02T00:00:00'
    """
    if match := _CAMERA.fullmatch(text):
        text = "{}-{}-{} {}{}".format(*match.groups())
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        return datetime.fromtimestamp(float(text), UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time: write 2024-05-31 14:03:00, or seconds since 1970") from None


def seconds(time: datetime) -> float:
    """Seconds since 1970; times without a zone are treated as UTC, so that their differences are correct."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def exif_time(path: Path) -> datetime | None:
    """Read the time of a photo, with fractions of a second if available; None if there is none."""
    try:
        with Image.open(path) as file:
            exif = file.getexif()
            taken = exif.get_ifd(ExifTags.IFD.Exif)
    except (OSError, SyntaxError, ValueError):  # a damaged file is handled when it is needed
        return None
    text = taken.get(ExifTags.Base.DateTimeOriginal) or taken.get(ExifTags.Base.DateTimeDigitized)
    text = str(text or exif.get(ExifTags.Base.DateTime) or "").strip("\0 ")
    fraction = str(taken.get(ExifTags.Base.SubsecTimeOriginal) or "").strip("\0 ")
    try:
        return read_time(f"{text}.{fraction[:6]:0<3}" if text and fraction.isdigit() else text)
    except ValueError:  # cameras without a clock write 0000:00:00 00:00:00
        return None


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Key that sorts names with numbers in them by value.

    Example:
        >>> sorted(["img10.jpg", "img9.jpg"], key=natural_key)
        ['img9.jpg', 'img10.jpg']
    """
    parts = re.split(r"(\d+)", name.casefold())
    return [int(part) if k % 2 else part for k, part in enumerate(parts)], name
