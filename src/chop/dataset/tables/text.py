"""Tables of text: CSV and ARFF."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from chop.dataset.tables.pieces import (
    MOST_ROW_BYTES,
    PIECE_BYTES,
    PIECE_CELLS,
    Column,
    Piece,
    TableFile,
)
from chop.errors import DataError

DELIMITERS = ",;\t"


@dataclass(frozen=True)
class TextLayout:
    """The form of the rows of a text file.

    Args:
        errors: what becomes of bytes that are not text, as for `open`.
        blank_rows: whether a blank line between rows is a row of empty cells; one after the last
            row never is.
    """

    path: Path
    names: tuple[str, ...]
    delimiter: str
    lines_before: int
    comments: str | None = None
    errors: str = "replace"
    blank_rows: bool = False


class TextLines:
    """The lines of a stream; counts the characters since `taken` was last set to 0."""

    def __init__(self, stream: TextIO, layout: TextLayout) -> None:
        self.stream = stream
        self.layout = layout
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        comments = self.layout.comments
        while line := self.stream.readline(MOST_ROW_BYTES):
            self.taken += len(line)
            if self.taken >= MOST_ROW_BYTES:
                raise DataError(f"{self.layout.path}: has a row of more than 16 MB of text")
            if comments is None or not line.lstrip().startswith(comments):
                yield line


def open_csv(path: Path, *, strict: bool = False) -> TableFile:
    """Open a text file whose first line names the columns, parted by commas, semicolons or tabs.

    Args:
        strict: whether rows are to keep their places and their text: a blank line between rows is
            a row, and bytes that are not UTF-8 are refused.
    """
    errors = "strict" if strict else "replace"
    with open_text(path, errors) as stream:
        try:
            header = stream.readline(MOST_ROW_BYTES)
            delimiter = max(DELIMITERS, key=header.count)
            names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
        except csv.Error as error:
            raise DataError(f"{path}: its first line names no columns ({error})") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not a table of text ({error})") from None
    if re.search(r"[\x00-\x08\x0e-\x1f]", header):
        raise DataError(f"{path}: is not a text file: its first line holds control characters")
    layout = TextLayout(path, tuple(names), delimiter, 1, errors=errors, blank_rows=strict)
    return _table_of(layout)


def open_arff(path: Path) -> TableFile:
    """Open an ARFF file as OpenML serves it: declarations, then one row a line."""
    names: list[str] = []
    with open_text(path) as stream:
        lines = TextLines(stream, TextLayout(path, (), ",", 0))
        for before, line in enumerate(lines, start=1):  # noqa: B007  (used after the loop)
            lines.taken = 0
            word = line.strip().lower()
            if word.startswith("@attribute"):
                names.append(_attribute(line, path))
            elif word.startswith("@data"):
                break
        else:
            raise DataError(f"{path}: is not an ARFF file: it has no @data line")
    return _table_of(TextLayout(path, tuple(names), ",", before, comments="%"))


def _attribute(line: str, path: Path) -> str:
    found = re.match(r"""\s*@attribute\s+(?:'([^']+)'|"([^"]+)"|(\S+))\s+\S""", line, re.IGNORECASE)
    if found is None:
        raise DataError(f"{path}: cannot read the ARFF line {line.strip()!r:.80}")
    return next(name for name in found.groups() if name)


def open_text(path: Path, errors: str = "replace") -> TextIO:
    """Open a file of text, or say in one line why that cannot be done."""
    try:
        return path.open(encoding="utf-8-sig", errors=errors, newline="")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _table_of(layout: TextLayout) -> TableFile:
    return TableFile(layout.path, layout.names, partial(_pieces, layout), layout.delimiter)


def _pieces(layout: TextLayout) -> Iterator[Piece]:
    start, size = 0, 0
    rows: list[Sequence[str]] = []
    for row, length in _checked_rows(layout):
        rows.append(row)
        size += length
        if size >= PIECE_BYTES or len(rows) * len(layout.names) >= PIECE_CELLS:
            yield _piece(start, rows)
            start, size, rows = start + len(rows), 0, []
    if rows:
        yield _piece(start, rows)


def _piece(start: int, rows: Sequence[Sequence[str]]) -> Piece:
    return Piece(start, len(rows), [Column(list(cells)) for cells in zip(*rows, strict=True)])


def _checked_rows(layout: TextLayout) -> Iterator[tuple[Sequence[str], int]]:
    """Yield the cells of each row and how long they are."""
    width, number, blank = len(layout.names), 0, 0
    for row, length in _records(layout):
        if not row or (len(row) == 1 < width and not row[0].strip()):
            blank += 1
            continue
        for _ in range(blank if layout.blank_rows else 0):
            number += 1
            yield [""] * width, width
        blank, number = 0, number + 1
        if len(row) != width:
            raise DataError(
                f"{layout.path}: row {number} has {len(row)} cells, but there are {width} columns"
            )
        yield row, length


def _records(layout: TextLayout) -> Iterator[tuple[list[str], int]]:
    with open_text(layout.path, layout.errors) as stream:
        before = TextLines(stream, replace(layout, comments=None))
        for _ in zip(range(layout.lines_before), before, strict=False):
            before.taken = 0
        lines = TextLines(stream, layout)
        try:
            for row in csv.reader(lines, delimiter=layout.delimiter):
                yield row, lines.taken
                lines.taken = 0
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{layout.path}: is not a table of text ({error})") from None
        except OSError as error:
            raise DataError(f"{layout.path}: cannot be read: {error.strerror}") from None
