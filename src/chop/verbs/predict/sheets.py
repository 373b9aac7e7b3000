"""Rows to be predicted, and the table that they become: its columns, faults and cells."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop.dataset.rows import Floats
from chop.dataset.tables import LABEL_NAMES, OPENERS
from chop.dataset.tables.pieces import Piece, TableFile, is_number, list_names, what_is_wrong
from chop.errors import DataError, UnknownNameError
from chop.preprocessing import Preprocessing

MOST_OTHERS = 1_000
"""Columns that are no features and yet are copied to the predictions."""
RISKY = frozenset("=+-@\t\r\n＝＋－＠")
"""What a cell begins with that a spreadsheet may take for a formula."""


def open_sheet(path: Path) -> TableFile:
    """Open the table in a file by the end of its name."""
    kind = path.suffix.lower()
    if kind.removeprefix(".") not in OPENERS or not kind:
        known = [f".{each}" for each in OPENERS]
        raise UnknownNameError("kind of file", kind or path.name, known, where=str(path))
    if not path.is_file():
        what = "is a folder; name the file" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}")
    table = OPENERS[kind.removeprefix(".")](path, strict=True)
    if not any(table.names):
        raise DataError(f"{path}: is empty, or its first line names no columns")
    seen: set[str] = set()
    for name in table.names:
        if name in seen:
            raise DataError(f"{path}: two columns are called {name!r:.40}")
        seen.add(name)
    return table


def find_label(table: TableFile, asked: str | None, features: Sequence[str]) -> str | None:
    """Return the column that holds the labels, if there is one.

    Args:
        asked: the name that it had in training; another file may have another.
        features: the columns that are none, where these have names.
    """
    if asked in table.names and asked not in features:
        return asked
    usual = [name for name in table.names if name.lower() in LABEL_NAMES and name not in features]
    return usual[0] if len(usual) == 1 else None


def feature_places(
    table: TableFile, known: Preprocessing | None, label: str | None
) -> tuple[int, ...]:
    """Return where the features are among the columns, in the order of the network.

    Columns are found by their names. Where the network knows none, all but the label are meant.
    None are columns where the file keeps features apart.
    """
    names = known.names if known is not None and table.width is None else ()
    place_of = {name: place for place, name in enumerate(table.names)}
    missing = [name for name in names if name not in place_of]
    if missing:
        some = "a column" if len(missing) == 1 else f"{len(missing)} columns"
        shown = list_names([f"{name!r:.40}" for name in missing])
        raise DataError(
            f"{table.path}: lacks {some} that the model was trained on: {shown} "
            f"(it has {list_names(table.names)})"
        )
    labels = (label or "").split(",")
    places = [place_of[name] for name in names]
    if not places and table.width is None:
        places = [place for name, place in place_of.items() if name not in labels]
    _check_width(table, known, len(places) if table.width is None else table.width)
    others = len(table.names) - len(places)
    if others > MOST_OTHERS:
        raise DataError(
            f"{table.path}: has {others:,} columns more than the {len(places):,} features of the "
            f"model; at most {MOST_OTHERS:,} others are copied, so leave some out"
        )
    return tuple(places)


def _check_width(table: TableFile, known: Preprocessing | None, width: int) -> None:
    if known is not None and width != len(known.mean):
        raise DataError(
            f"{table.path}: has {width:,} columns of numbers, but the model was trained on "
            f"{len(known.mean)} {known.kind}"
        )


@dataclass(frozen=True)
class Faults:
    """The faults of rows that cannot be predicted: a line for each such row, by its place."""

    lines: dict[int, str]

    def note(self, rows: Iterable[int], line: str) -> None:
        """Note a fault of rows that have none yet."""
        for row in rows:
            self.lines.setdefault(row, line)


def finite_features(piece: Piece, table: TableFile, places: Sequence[int]) -> tuple[Floats, Faults]:
    """Return the features of each row, 0 in rows that have a fault, and these faults."""
    found = piece.matrix(places) if piece.features is None else piece.features.copy()
    bad = ~np.isfinite(found.reshape(piece.rows, -1))
    faults = Faults({})
    texts: dict[int, list[str]] = {}
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        at = int(np.argmax(bad[row]))
        if piece.features is not None:
            faults.note([row], f"feature {at} is not a finite number of float32")
            continue
        place = places[at]
        cells = texts.setdefault(place, piece.columns[place].texts())
        faults.note([row], f"column {table.names[place]!r:.40} {what_is_wrong(cells[row])}")
    found[list(faults.lines)] = 0
    return found, faults


def table_lines(
    table: TableFile, pieces: Iterator[tuple[Piece, Mapping[str, Sequence[str]]]], raw: bool
) -> Iterator[str]:
    """Yield a table as CSV with further columns at its end, piece by piece.

    Args:
        raw: write all cells as they are; else a ``'`` goes before text that a spreadsheet may take
            for a formula.
    """
    writer = csv.writer(_Echo(), delimiter=table.delimiter)
    for number, (piece, more) in enumerate(pieces):
        if number == 0:
            yield writer.writerow(_cells([*table.names, *more], raw))
        columns = [column.texts() for column in piece.columns] + list(more.values())
        for row in zip(*columns, strict=True):
            yield writer.writerow(_cells(row, raw))


class _Echo:
    """A stream that gives back what is written, so that equal cells are in memory once.

    Rows are written with both signs that may end a line, as only cells with one of those that do
    are put into quotes; one is left at the end.
    """

    def write(self, text: str) -> str:
        return text.removesuffix("\r\n") + "\n"


def check_new_columns(table: TableFile, more: Iterable[str]) -> None:
    """Refuse a table that has a column by the name of one that is to be added."""
    for name in more:
        if name in table.names:
            raise DataError(
                f"{table.path}: has a column {name!r:.40} already, which would be written: "
                "rename it"
            )


def _cells(texts: Sequence[str], raw: bool) -> Sequence[str]:
    """Return cells as they are written."""
    return texts if raw else [_defuse(text) if text[:1] in RISKY else text for text in texts]


def _defuse(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula; numbers and single signs are none."""
    return text if len(text) == 1 or is_number(text) else f"'{text}"
