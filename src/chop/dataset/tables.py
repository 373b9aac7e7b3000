"""Tables of numbers with a column of classes or of targets, read from files of several kinds."""

import csv
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from chop.dataset.rows import Floats, Labels
from chop.errors import DataError, suggestion

LABEL_NAMES = ("label", "labels", "class", "target", "y")
FEATURE_ARRAYS = ("features", "x", "data", "images")
NAME_ARRAYS = ("class_names", "feature_names")
DELIMITERS = ",;\t"
SMALL, MOST_PACKED = 256 << 20, 200
"""Bytes that any file may unpack to, and how many times its size a larger one may: numbers that
are measured hardly shrink, so one that unpacks to more is a trap."""


@dataclass(frozen=True)
class Table:
    """Rows of features and the class of each, as it is written in the file, or its targets."""

    features: Floats
    labels: NDArray[Any]
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    """All classes in their order, where the file says them; else those of the rows are sorted."""
    target_names: tuple[str, ...] = ()
    """Of the columns of `labels`, where these are numbers to be predicted."""


@dataclass(frozen=True)
class Wanted:
    """Which columns hold the labels, and what they are.

    Args:
        column: its name, or several names parted by commas; None looks for a usual name.
        numbers: whether they are numbers to be predicted, rather than classes.
    """

    column: str | None = None
    numbers: bool = False

    def places(self, names: Sequence[str], path: Path, what: str = "columns") -> list[int]:
        """Where the labels are among `names`."""
        if self.numbers and self.column and self.column not in names:
            asked = list(dict.fromkeys(name.strip() for name in self.column.split(",")))
            return [label_index(names, name, path, what) for name in asked]
        return [label_index(names, self.column, path, what)]


@dataclass(frozen=True)
class TextLayout:
    """How the rows of a text file are written."""

    names: list[str]
    delimiter: str
    lines_before: int
    comments: str | None = None


def read_csv(path: Path, wanted: Wanted) -> Table:
    """A text file whose first line names the columns, parted by commas, semicolons or tabs."""
    with _opened(path) as stream:
        header = stream.readline()
        if re.search(r"[\x00-\x08\x0e-\x1f]", header):
            raise DataError(f"{path}: is not a text file: its first line holds control characters")
        delimiter = max(DELIMITERS, key=header.count)
        try:
            names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
        except csv.Error as error:
            raise DataError(f"{path}: its first line names no columns ({error})") from None
    return _read_text(path, TextLayout(names, delimiter, lines_before=1), wanted)


def read_arff(path: Path, wanted: Wanted) -> Table:
    """An ARFF file as OpenML serves it: declarations, then one row a line."""
    names: list[str] = []
    with _opened(path) as stream:
        for before, line in enumerate(stream, start=1):  # noqa: B007  (used after the loop)
            word = line.strip().lower()
            if word.startswith("@attribute"):
                names.append(_attribute(line, path))
            elif word.startswith("@data"):
                break
        else:
            raise DataError(f"{path}: is not an ARFF file: it has no @data line")
    return _read_text(path, TextLayout(names, ",", before, comments="%"), wanted)


def read_parquet(path: Path, wanted: Wanted) -> Table:
    """A Parquet file; every column but the label must hold numbers."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        columns = read_table(path, page_checksum_verification=True)
        names = list(columns.column_names)
        places = wanted.places(names, path)
        arrays = [column.to_numpy() for column in columns.columns]
    except (ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        raise _unreadable(path, "Parquet", error) from None
    others = _without(range(len(names)), places)
    for place in (*others, *(places if wanted.numbers else ())):
        if arrays[place].dtype.kind not in "fiub":
            raise DataError(f"{path}: column {names[place]!r} does not hold numbers")
    features = np.empty((len(arrays[places[0]]), len(others)), np.float32)
    for index, place in enumerate(others):
        features[:, index] = arrays[place]
    labels = arrays[places[0]]
    if wanted.numbers:
        labels = np.column_stack([arrays[place] for place in places])
    return _table(features, labels, names, places, path)


def read_npz(path: Path, wanted: Wanted) -> Table:
    """A NumPy archive with an array of features and one of labels; pickled arrays are refused."""
    try:
        check_unpacked(path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            names = list(stored.files)
            label = names[wanted.places(names, path, what="arrays")[0]]
            found = [name for name in names if name.lower() in FEATURE_ARRAYS and name != label]
            if len(found) != 1:
                usual = " or ".join(FEATURE_ARRAYS)
                raise DataError(
                    f"{path}: needs one array called {usual} (it has {', '.join(names)})"
                )
            features, labels = stored[found[0]], stored[label]
            named = {name: _names_in(stored, name, path) for name in NAME_ARRAYS}
    except UNREADABLE as error:
        raise _unreadable(path, "NumPy archive", error) from None
    if features.dtype.kind not in "fiub":
        raise DataError(f"{path}: array {found[0]!r} does not hold numbers")
    shapes = {1: "(rows,)"} | ({2: "(rows, targets)"} if wanted.numbers else {})
    if labels.ndim not in shapes or features.ndim not in (2, 4) or len(features) != len(labels):
        raise DataError(
            f"{path}: {found[0]} {features.shape} must be (rows, features) or (rows, channels, "
            f"height, width) and {label} {labels.shape} {' or '.join(shapes.values())}"
        )
    columns = named["feature_names"]
    if columns and len(columns) != features.shape[1]:
        raise DataError(f"{path}: {len(columns)} feature_names for {features.shape[1]} features")
    _check_features(features := features.astype(np.float32), columns, path)
    if not wanted.numbers:
        return Table(features, labels, columns, named["class_names"])
    if labels.dtype.kind not in "fiub":
        raise DataError(f"{path}: array {label!r} does not hold numbers")
    numbers = labels.reshape(len(labels), -1).astype(np.float32)
    several = [f"{label}_{place}" for place in range(numbers.shape[1])]
    return _with_targets(
        Table(features, numbers, columns), [label] if len(several) == 1 else several, path
    )


def _names_in(stored: Any, name: str, path: Path) -> tuple[str, ...]:
    """The array of names in an archive, if it has one."""
    if name not in stored.files:
        return ()
    try:
        names = stored[name]
    except ValueError:
        raise DataError(
            f"{path}: array {name!r} is pickled; save it as text: np.array(names, dtype=str)"
        ) from None
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise DataError(f"{path}: array {name!r} must be a list of texts")
    return tuple(str(each) for each in names.astype(str))


READERS: dict[str, Callable[[Path, Wanted], Table]] = {
    "csv": read_csv,
    "npz": read_npz,
    "parquet": read_parquet,
}


UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, NotImplementedError,
    MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What NumPy and zipfile raise on damaged files."""


def check_unpacked(path: Path) -> None:
    """Refuse an archive that is small only until it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    size = path.stat().st_size
    if unpacked > max(SMALL, MOST_PACKED * size):
        raise DataError(
            f"{path}: {size:,} bytes would unpack to {unpacked:,}, so it holds no measured numbers"
        )


def class_indices(
    classes: NDArray[Any], path: Path, stated: Sequence[str] = ()
) -> tuple[Labels, tuple[str, ...]]:
    """Each row's class as an index, and the names of the classes in that order.

    Classes are sorted: by value if they are whole numbers, else by name.

    Args:
        stated: the names of all classes in their order; rows have them, or their places.
    """
    comparable = _comparable(classes, path)
    if stated:
        return _stated_indices(comparable, path, tuple(stated)), tuple(stated)
    values, indices = np.unique(comparable, return_inverse=True)
    names = tuple(str(value) for value in values)
    if "" in names:
        raise DataError(f"{path}: some rows have no class")
    if len(names) < 2:
        raise DataError(f"{path}: all rows are of one class ({', '.join(names)})")
    return indices.astype(np.int64), names


def _stated_indices(classes: NDArray[Any], path: Path, stated: tuple[str, ...]) -> Labels:
    """The place of each row's class among those that the file states."""
    if len(set(stated)) != len(stated) or len(stated) < 2:
        raise DataError(f"{path}: class_names must be two different names at least")
    values, indices = np.unique(classes, return_inverse=True)
    names = [str(value) for value in values]
    if all(name in stated for name in names):
        return np.array([stated.index(name) for name in names], np.int64)[indices]
    places = {str(place) for place in range(len(stated))}
    others = [name for name in names if name not in places]
    if others:
        unknown = next((name for name in others if name not in stated), others[0])
        raise DataError(
            f"{path}: class {unknown!r:.40} is none of the {len(stated)} class_names, and no "
            f"place from 0 to {len(stated) - 1} among them"
        )
    return classes.astype(np.int64)


def label_index(names: Sequence[str], asked: str | None, path: Path, what: str = "columns") -> int:
    """Which of `names` holds the classes: the one asked for, else the one with a usual name."""
    if asked is not None:
        if asked not in names:
            raise DataError(f"{path}: no label column {asked!r}: {suggestion(asked, names)}")
        return list(names).index(asked)
    usual = [index for index, name in enumerate(names) if name.lower() in LABEL_NAMES]
    if len(usual) != 1:
        raise DataError(
            f"{path}: which column is the label? Name it with --label-column; the {what} are "
            f"{', '.join(names)}"
        )
    return usual[0]


def _comparable(classes: NDArray[Any], path: Path) -> NDArray[Any]:
    """Classes as whole numbers where they are such, else as text."""
    numbers = classes
    if classes.dtype.kind not in "fiub":
        try:
            text = np.char.strip(classes.astype(str), " '\"\r")
        except ValueError:  # bytes that are no text, or lists
            raise DataError(f"{path}: the label column holds neither numbers nor text") from None
        try:
            numbers = text.astype(np.float64)
        except ValueError:
            return text
    if not np.array_equal(numbers, np.floor(numbers)):
        raise DataError(
            f"{path}: the label column holds real numbers, not classes; to predict numbers write "
            "--task regression"
        )
    return numbers.astype(np.int64)


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig", errors="replace", newline="")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _attribute(line: str, path: Path) -> str:
    found = re.match(r"""\s*@attribute\s+(?:'([^']+)'|"([^"]+)"|(\S+))\s+\S""", line, re.IGNORECASE)
    if found is None:
        raise DataError(f"{path}: cannot read the ARFF line {line.strip()!r}")
    return next(name for name in found.groups() if name)


def _read_text(path: Path, layout: TextLayout, wanted: Wanted) -> Table:
    """The numbers of every column but the labels, and these as text or as numbers."""
    places = wanted.places(layout.names, path)
    others = list(_without(range(len(layout.names)), places))
    features = _parsed(path, layout, others, np.float32)
    labels = _parsed(path, layout, places, np.float64 if wanted.numbers else str)
    return _table(features, labels if wanted.numbers else labels[:, 0], layout.names, places, path)


def _parsed(path: Path, layout: TextLayout, columns: list[int], kind: type) -> NDArray[Any]:
    with _opened(path) as stream:
        for _ in range(layout.lines_before):
            stream.readline()
        lines = (line for line in stream if line.strip())
        first = next(lines, None)
        if first is None:
            raise DataError(f"{path}: has no rows")
        try:
            return np.loadtxt(
                chain([first], lines),
                dtype=kind,
                delimiter=layout.delimiter,
                comments=layout.comments,
                usecols=columns,
                quotechar='"',
                ndmin=2,
            )
        except ValueError as error:
            raise DataError(f"{path}: {_named_column(str(error), layout.names)}") from None
        except MemoryError:
            raise DataError(f"{path}: its columns do not fit in memory") from None


def _named_column(message: str, names: list[str]) -> str:
    """NumPy's message with the column's name and with the row counted from 1."""
    found = re.match(
        r"could not convert string (.*) to float\d* at row (\d+), column (\d+)", message
    )
    if found is None:
        return message.partition(";")[0].rstrip(".")
    text, row, column = found[1], int(found[2]) + 1, int(found[3]) - 1
    return f"column {names[column]!r} does not hold numbers (row {row} says {text})"


def _without(items: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(item for place, item in enumerate(items) if place not in places)


def _table(
    features: Floats, labels: NDArray[Any], names: Sequence[str], places: Sequence[int], path: Path
) -> Table:
    """A table of columns with these names; those at `places` are the labels."""
    columns = _without(names, places)
    _check_features(features, columns, path)
    if labels.ndim == 1:
        return Table(features, labels, columns)
    found = Table(features, labels.astype(np.float32), columns)
    return _with_targets(found, [names[place] for place in places], path)


def _with_targets(table: Table, names: Sequence[str], path: Path) -> Table:
    """A table with the names of its targets, each of which must be a finite number."""
    bad = ~np.isfinite(table.labels).all(axis=0)
    if bad.any():
        name = names[int(np.argmax(bad))]
        raise DataError(f"{path}: column {name!r} has values that are missing or not finite")
    return replace(table, target_names=tuple(names))


def _check_features(features: Floats, names: tuple[str, ...], path: Path) -> None:
    """Refuse a feature that is not a finite number in every row."""
    if len(features) == 0 or features.size == 0:
        raise DataError(f"{path}: has no rows of features")
    bad = ~np.isfinite(features)
    if bad.any():
        axes = tuple(axis for axis in range(features.ndim) if axis != 1)
        column = int(np.argmax(bad.any(axis=axes)))
        name = names[column] if names else str(column)
        raise DataError(f"{path}: column {name!r} has values that are missing or not finite")


def _unreadable(path: Path, kind: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0]
    if isinstance(error, MemoryError):
        return DataError(f"{path}: there is not enough memory to read it ({reason[:120]})")
    return DataError(f"{path}: is damaged or not a {kind} file ({reason[:120]})")
