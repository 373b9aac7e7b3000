"""Rows to be predicted: a table as it is in a file, of which some columns are features."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.tables import (
    DELIMITERS,
    FEATURE_ARRAYS,
    LABEL_NAMES,
    UNREADABLE,
    check_unpacked,
)
from chop.errors import DataError, UnknownNameError

Floats = NDArray[np.float32]
LISTED = 5  # names that a message lists


@dataclass(frozen=True)
class Sheet:
    """The cells of a table as text.

    Args:
        features: what a row is, where the file says that, as an archive of arrays does; the cells
            are then what else there is of each row.
    """

    path: Path
    names: tuple[str, ...]
    cells: list[list[str]]
    delimiter: str = ","
    features: Floats | None = None

    def column(self, name: str) -> list[str]:
        """The cells of a column from top to bottom."""
        place = self.names.index(name)
        return [row[place] for row in self.cells]

    def label(self, asked: str | None, features: Sequence[str]) -> str | None:
        """The column that holds the labels, if there is one.

        Args:
            asked: the name that it had in training; another file may have another.
            features: the columns that are none, where these have names.
        """
        if asked in self.names and asked not in features:
            return asked
        usual = [
            name for name in self.names if name.lower() in LABEL_NAMES and name not in features
        ]
        return usual[0] if len(usual) == 1 else None

    def numbers(self, names: Sequence[str]) -> Floats:
        """Some columns as numbers, in this order."""
        if self.features is not None:
            return self._finite(self.features, ())
        missing = [name for name in names if name not in self.names]
        if missing:
            shown = ", ".join(map(repr, missing[:LISTED])) + (", …" if missing[LISTED:] else "")
            have = ", ".join(self.names[:LISTED]) + (", …" if self.names[LISTED:] else "")
            some = "a column" if len(missing) == 1 else f"{len(missing)} columns"
            raise DataError(
                f"{self.path}: lacks {some} that the model was trained on: {shown} (it has {have})"
            )
        found = np.empty((len(self.cells), len(names)), np.float32)
        with np.errstate(over="ignore"):
            for place, name in enumerate(names):
                found[:, place] = self._as_numbers(name)
        return self._finite(found, names)

    def _as_numbers(self, name: str) -> NDArray[np.float64]:
        texts = self.column(name)
        try:
            return np.array([float(text) for text in texts])
        except ValueError:
            pass
        row, text = next((row, text) for row, text in enumerate(texts, 1) if not _is_number(text))
        said = f"says {text!r:.40}" if text.strip() else "is empty"
        raise DataError(f"{self.path}: column {name!r} does not hold numbers (row {row} {said})")

    def _finite(self, found: Floats, names: Sequence[str]) -> Floats:
        bad = ~np.isfinite(found.reshape(len(found), -1))
        if bad.any():
            row, place = (int(each) for each in np.argwhere(bad)[0])
            name = f"column {names[place]!r}" if names else "an array of features"
            raise DataError(
                f"{self.path}: {name} has values that are missing or not finite (row {row + 1})"
            )
        return found

    def with_columns(self, more: Mapping[str, Sequence[Any]]) -> str:
        """The table as CSV with further columns at its end."""
        for name in more:
            if name in self.names:
                raise DataError(
                    f"{self.path}: has a column {name!r} already, which would be written: rename it"
                )
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter=self.delimiter, lineterminator="\n")
        writer.writerow([*self.names, *more])
        for row, added in zip(self.cells, zip(*more.values(), strict=True), strict=True):
            writer.writerow([*row, *added])
        return stream.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_sheet(path: Path) -> Sheet:
    """The table in a file, read by the end of its name."""
    kind = path.suffix.lower()
    if kind not in SHEETS:
        raise UnknownNameError("kind of file", kind or path.name, SHEETS, where=str(path))
    if not path.is_file():
        what = "is a folder; name the file" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}")
    sheet = SHEETS[kind](path)
    if not sheet.cells:
        raise DataError(f"{path}: has no rows")
    return sheet


def _from_csv(path: Path) -> Sheet:
    """Text whose first line names the columns, as training reads it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header = stream.readline()
            if not header.strip():
                raise DataError(f"{path}: is empty, or its first line names no columns")
            delimiter = max(DELIMITERS, key=header.count)
            names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
            cells = [row for row in csv.reader(stream, delimiter=delimiter) if any(row)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is no table of text ({error})") from None
    for number, row in enumerate(cells, 1):
        if len(row) != len(names):
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, but there are {len(names)} columns"
            )
    return Sheet(path, _once(names, path), cells, delimiter)


def _once(names: Sequence[str], path: Path) -> tuple[str, ...]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r}")
    return tuple(names)


def _from_parquet(path: Path) -> Sheet:
    """A Parquet file; a missing value is an empty cell."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        table = read_table(path, page_checksum_verification=True)
        columns = [column.to_pylist() for column in table.columns]
    except (ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        raise DataError(f"{path}: is damaged or no Parquet file ({error!s:.80})") from None
    texts = [["" if value is None else str(value) for value in column] for column in columns]
    return Sheet(
        path, _once(table.column_names, path), [list(row) for row in zip(*texts, strict=True)]
    )


def _from_npz(path: Path) -> Sheet:
    """A NumPy archive: its features are the rows, and arrays as long as they are columns."""
    try:
        check_unpacked(path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except UNREADABLE as error:
        raise DataError(f"{path}: is damaged or no NumPy archive ({error!s:.80})") from None
    found = [name for name in arrays if name.lower() in FEATURE_ARRAYS]
    if len(found) != 1 or arrays[found[0]].ndim < 2 or arrays[found[0]].dtype.kind not in "fiub":
        raise DataError(
            f"{path}: needs one array of numbers, (rows, …), called {' or '.join(FEATURE_ARRAYS)}"
        )
    features = arrays[found[0]].astype(np.float32)
    others = dict(_columns(arrays, len(features)))
    columns = [[str(value) for value in each] for each in others.values()]
    cells = [[str(row), *(column[row] for column in columns)] for row in range(len(features))]
    return Sheet(path, ("row", *others), cells, features=features)


def _columns(arrays: dict[str, NDArray[Any]], rows: int) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, array in arrays.items():
        if array.shape == (rows,) and name != "row":
            yield name, array


SHEETS = {".csv": _from_csv, ".parquet": _from_parquet, ".npz": _from_npz}
"""How a file is read, by the end of its name."""
