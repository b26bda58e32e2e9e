"""Reads a user's table, CSV or Parquet, as columns of values, with any delimiter, byte order mark and line endings."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tta_bench.files import read_text

DELIMITERS = ",;\t|"
PARQUET = (".parquet", ".pq")
# Missing values as written by pandas, R and spreadsheets.
MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "<na>", "nat"))


@dataclass(frozen=True)
class Table:
    """The requested columns of a table.

    Attributes:
        path: The file.
        columns: By name, one value per row: stripped text, None if missing.
        places: Position of each row in the file, for messages.
        unused: Names of the other columns, as written.
    """

    path: Path
    columns: dict[str, list[str | None]]
    places: list[str]
    unused: list[str]

    def __len__(self) -> int:
        return len(self.places)


def read_table(path: Path, needed: str, optional: Iterable[str], keep: Iterable[str] = ()) -> Table:
    """Read a table with a header.

    Args:
        path: ``.csv``, ``.tsv`` or any other text with one of ``DELIMITERS`` between values, or ``.parquet``.
        needed: The required column, with a value in every row.
        optional: Optional columns. Case and blanks in names are ignored.
        keep: Columns in which words such as ``none`` are values, and only empty values are missing.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not such a table, the number of values in a row differs from the header, or the name of a
            column is similar to that of an expected one.
    """
    known, keep = [needed, *optional], set(keep)
    names, rows, places = _parquet(path) if path.suffix.lower() in PARQUET else _text(path, needed)
    titles = [name.strip().casefold() for name in names]
    if twice := next((name for name in known if titles.count(name) > 1), None):
        raise ValueError(f"{path} has two columns {twice!r}: rename one")
    unused = [name for name, title in zip(names, titles, strict=True) if title not in known]
    for name in unused:  # a misspelt column would silently count as missing
        free = [each for each in known if each not in titles]
        if near := get_close_matches(name.strip().casefold(), free, n=1, cutoff=0.75):
            raise ValueError(
                f"{path} has a column {name!r}: rename it to {near[0]!r}, or to something else if unrelated"
            )
    if needed not in titles:
        raise ValueError(f"{path} has no column {needed!r}, but {', '.join(map(repr, names))}")
    if not rows:
        raise ValueError(f"{path} has a header but no rows")
    columns = {}
    for name in known:
        if name in titles:
            at = titles.index(name)
            columns[name] = [_value(row[at], () if name in keep else MISSING) for row in rows]
    if None in columns[needed]:
        raise ValueError(f"{path}, {places[columns[needed].index(None)]}: there is no {needed}")
    return Table(path, columns, places, unused)


def _value(value: Any, missing: Iterable[str]) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = value.isoformat() if isinstance(value, date) else str(value).strip()  # a datetime is a date
    return None if not text or text.casefold() in missing else text


def _text(path: Path, needed: str) -> tuple[list[str], list[list[Any]], list[str]]:
    text = read_text(path, "table")
    if not text.strip():
        raise ValueError(f"{path} is empty: its first line names the columns, for example path,label")
    first = next(line for line in text.split("\n") if line.strip())

    def titles(delimiter: str) -> list[str]:
        return [name.strip().casefold() for name in next(csv.reader([first], delimiter=delimiter))]

    # The delimiter that results in a column with the required name; of several, the one with the most columns.
    fitting = [d for d in DELIMITERS if needed in titles(d)]
    if not fitting:
        raise ValueError(f"{path} has no column {needed!r} in its first line, which is {first!r}")
    reader = csv.reader(io.StringIO(text), delimiter=max(fitting, key=lambda d: len(titles(d))), strict=True)
    rows, places = [], []
    try:
        for row in reader:
            if any(value.strip() for value in row):
                rows.append(row)
                places.append(f"line {reader.line_num}")
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    header = rows[0]
    for row, place in zip(rows, places, strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, {place}: {len(row)} values, and the header has {len(header)} columns; quote a value that "
                "holds a delimiter"
            )
    return header, rows[1:], places[1:]


def _parquet(path: Path) -> tuple[list[str], list[list[Any]], list[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no table at {path}")
    try:
        import pyarrow as pa
        from pyarrow.parquet import read_table as read_parquet
    except ImportError:
        raise ValueError(f"{path} is a Parquet file: install pyarrow to read it, or save it as .csv") from None
    try:
        read = read_parquet(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from error
    times = [k for k, field in enumerate(read.schema) if pa.types.is_timestamp(field.type)]
    for k in times:  # Python's times have no nanoseconds
        microseconds = pa.timestamp("us", read.schema.field(k).type.tz)
        read = read.set_column(k, read.schema.field(k).name, read.column(k).cast(microseconds, safe=False))
    columns = [column.to_pylist() for column in read.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return read.column_names, rows, [f"row {number}" for number in range(1, len(rows) + 1)]
