"""Tables of numbers with a column of classes or of targets, read from files of several kinds.

`open_csv`, `open_parquet` and `open_npz` open a table to be read in pieces; `read_table`
brings the pieces together, in a file where they are too many for memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.rows import Floats, Labels
from chop.dataset.tables.archives import NUMBERS, Archive, feature_array, open_archive, open_npz
from chop.dataset.tables.growing import GrowingRows
from chop.dataset.tables.parquet import open_parquet
from chop.dataset.tables.pieces import Column, Piece, TableFile, is_number
from chop.dataset.tables.text import open_arff, open_csv
from chop.errors import DataError, suggestion

LABEL_NAMES = ("label", "labels", "class", "target", "y")
NAME_ARRAYS = ("class_names", "feature_names")
MOST_ROWS, MOST_CLASSES, LONGEST_CLASS = 1 << 26, 1 << 16, 256
"""Of a table that is split: the order of its rows and its classes are held in memory."""
LISTED = 200
"""Columns that a message lists."""


@dataclass(frozen=True)
class LabelledTable:
    """Rows of features and the class of each, as it is written in the file, or its targets."""

    features: Floats
    labels: NDArray[Any]
    """The place of each row's class among `classes`, or its targets."""
    feature_names: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None
    """The different classes as the file has them, in the order in which they appear."""
    class_names: tuple[str, ...] = ()
    """All classes in their order, where the file says them; else those of the rows are sorted."""
    target_names: tuple[str, ...] = ()
    """Of the columns of `labels`, where these are numbers to be predicted."""


@dataclass(frozen=True)
class Wanted:
    """The columns that hold the labels, and the kind of the labels.

    Args:
        column: its name, or several names parted by commas; None looks for a usual name.
        numbers: whether they are numbers to be predicted, rather than classes.
    """

    column: str | None = None
    numbers: bool = False

    def places(self, names: Sequence[str], path: Path, what: str = "columns") -> list[int]:
        """Return the places of the labels among `names`."""
        if self.numbers and self.column and self.column not in names:
            asked = list(dict.fromkeys(name.strip() for name in self.column.split(",")))
            return [label_index(names, name, path, what) for name in asked]
        return [label_index(names, self.column, path, what)]


OPENERS: dict[str, Callable[..., TableFile]] = {
    "csv": open_csv,
    "npz": open_npz,
    "parquet": open_parquet,
}
"""What opens a file as a table, by the end of its name."""


def read_table(path: Path, kind: str, wanted: Wanted, folder: Path) -> LabelledTable:
    """Read the features and the labels of all rows.

    Args:
        kind: ``arff``, or a key of `OPENERS`.
        folder: where arrays that are too large for memory are kept while they are in use.
    """
    if kind == "npz":
        return _read_archive(open_archive(path), wanted, folder)
    table = open_arff(path) if kind == "arff" else OPENERS[kind](path)
    places = wanted.places(table.names, path)
    others = [place for place in range(len(table.names)) if place not in places]
    for place in (*others, *(places if wanted.numbers else ())):
        if (name := table.names[place]) in table.texts:
            raise DataError(f"{path}: column {name!r:.40} does not hold numbers")
    rows = _RowsOf(path, wanted, folder)
    for piece in table.pieces():
        features = _numbers(piece, others, table)
        labels = _numbers(piece, places, table) if wanted.numbers else piece.columns[places[0]]
        rows.add(features, labels)
    names = tuple(table.names[place] for place in others)
    return rows.table(names, [table.names[place] for place in places])


class _RowsOf:
    """Gathers the rows of a table piece by piece."""

    def __init__(self, path: Path, wanted: Wanted, folder: Path) -> None:
        self.path = path
        self.numbers = wanted.numbers
        self.features = GrowingRows(np.float32, folder)
        self.labels = GrowingRows(np.float32 if wanted.numbers else np.int32, folder)
        self.classes: dict[Any, int] = {}

    def add(self, features: Floats, labels: Column | NDArray[Any]) -> None:
        if self.features.rows + len(features) > MOST_ROWS:
            raise DataError(f"{self.path}: has more than {MOST_ROWS:,} rows; give a part of them")
        self.features.add(features)
        self.labels.add(self._places(labels) if isinstance(labels, Column) else labels)

    def _places(self, labels: Column) -> NDArray[Any]:
        """Number the classes as they appear; each is looked at once."""
        known = self.classes
        if isinstance(labels.values, list):
            if max(map(len, labels.values)) > LONGEST_CLASS:
                raise DataError(f"{self.path}: a class has more than {LONGEST_CLASS} characters")
            places = [known.setdefault(text, len(known)) for text in labels.values]
        else:
            values = labels.values if labels.missing is None else labels.numbers()
            different, inverse = np.unique(_comparable(values, self.path), return_inverse=True)
            places = [known.setdefault(each, len(known)) for each in different.tolist()]
            places = np.array(places, np.int32)[inverse].tolist()
        if len(known) > MOST_CLASSES:
            class_indices(np.array(list(known)[:1_000]), self.path)  # which may know more
            raise DataError(f"{self.path}: the label column has more than {MOST_CLASSES:,} classes")
        return np.array(places, np.int32)

    def table(self, feature_names: tuple[str, ...], label_names: Sequence[str]) -> LabelledTable:
        if not self.features.rows:
            raise DataError(f"{self.path}: has no rows")
        features, labels = self.features.array(), self.labels.array()
        if not features.size:
            raise DataError(f"{self.path}: has no rows of features")
        if self.numbers:
            return LabelledTable(features, labels, feature_names, target_names=tuple(label_names))
        return LabelledTable(features, labels, feature_names, np.array(list(self.classes)))


def _numbers(piece: Piece, places: Sequence[int], table: TableFile) -> Floats:
    """Return some columns as finite numbers, or say which cell is not one."""
    found = piece.matrix(places)
    bad = np.argwhere(~np.isfinite(found))
    if len(bad):
        row, at = bad[0].tolist()
        column, number = piece.columns[places[at]], piece.start + row + 1
        text, name = column.texts()[row], table.names[places[at]]
        if isinstance(column.values, list) and not is_number(text):
            raise DataError(
                f"{table.path}: column {name!r:.40} does not hold numbers "
                f"(row {number} says {text!r:.40})"
            )
        raise DataError(
            f"{table.path}: column {name!r:.40} has values that are missing or not finite "
            f"(row {number})"
        )
    return found


def _read_archive(archive: Archive, wanted: Wanted, folder: Path) -> LabelledTable:
    """Read an array of features and one of labels; pickled arrays are refused."""
    path, names = archive.path, list(archive.arrays)
    label = names[wanted.places(names, path, what="arrays")[0]]
    found = feature_array(archive, without=label)
    features, labels = archive.arrays[found], archive.arrays[label]
    named = {name: _names_in(archive, name) for name in NAME_ARRAYS}
    pickled = [name for name in (found, label) if archive.arrays[name].dtype.hasobject]
    if pickled:
        raise DataError(f"{path}: is damaged or not a NumPy archive file ({pickled[0]} is pickled)")
    for name in (found, *([label] if wanted.numbers else [])):
        if archive.arrays[name].dtype.kind not in NUMBERS:
            raise DataError(f"{path}: array {name!r:.40} does not hold numbers")
    shapes = {1: "(rows,)"} | ({2: "(rows, targets)"} if wanted.numbers else {})
    ranks = len(features.shape) in (2, 4) and len(labels.shape) in shapes
    if not ranks or features.shape[0] != labels.shape[0]:
        raise DataError(
            f"{path}: {found} {features.shape} must be (rows, features) or (rows, channels, "
            f"height, width) and {label} {labels.shape} {' or '.join(shapes.values())}"
        )
    columns = named["feature_names"]
    if columns and len(columns) != features.shape[1]:
        raise DataError(f"{path}: {len(columns)} feature_names for {features.shape[1]} features")
    rows = _RowsOf(path, wanted, folder)
    for values, each in archive.pieces([found, label]):
        _check_finite(checked := values.astype(np.float32), columns, path)
        rows.add(checked, _targets(each, label, path) if wanted.numbers else _as_column(each))
    several = [f"{label}_{place}" for place in range(int(np.prod(labels.row_shape)))]
    table = rows.table(columns, [label] if len(several) == 1 else several)
    return replace(table, class_names=() if wanted.numbers else named["class_names"])


def _as_column(values: NDArray[Any]) -> Column:
    """Return an array of labels as a column: text where it does not hold numbers."""
    return Column(values if values.dtype.kind in NUMBERS else values.astype(str).tolist())


def _targets(values: NDArray[Any], label: str, path: Path) -> Floats:
    targets: Floats = values.reshape(len(values), -1).astype(np.float32)
    _check_finite(targets, (label,) * targets.shape[1], path)
    return targets


def _names_in(archive: Archive, name: str) -> tuple[str, ...]:
    """The array of names in an archive, if it has one."""
    if name not in archive.arrays:
        return ()
    stored = archive.arrays[name]
    if stored.dtype.hasobject:
        raise DataError(
            f"{archive.path}: array {name!r} is pickled; save it as text: "
            "np.array(names, dtype=str)"
        )
    if len(stored.shape) != 1 or stored.dtype.kind not in "US":
        raise DataError(f"{archive.path}: array {name!r} must be a list of texts")
    return tuple(str(each) for each in archive.whole(name).astype(str))


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
            f"{path}: class {unknown!r:.40} is not one of the {len(stated)} class_names, and no "
            f"place from 0 to {len(stated) - 1} among them"
        )
    return classes.astype(np.int64)


def label_index(names: Sequence[str], asked: str | None, path: Path, what: str = "columns") -> int:
    """Return the index of the classes among `names`: as asked for, else by a usual name."""
    if asked is not None:
        if asked not in names:
            near = suggestion(asked, names[:LISTED])
            raise DataError(f"{path}: no label column {asked!r}: {near}")
        return list(names).index(asked)
    usual = [index for index, name in enumerate(names) if name.lower() in LABEL_NAMES]
    if len(usual) != 1:
        raise DataError(
            f"{path}: which column is the label? Name it with --label-column; the {what} are "
            f"{', '.join(names[:LISTED])}{', …' if names[LISTED:] else ''}"
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


def _check_finite(features: Floats, names: tuple[str, ...], path: Path) -> None:
    """Refuse a feature that is not a finite number in every row."""
    bad = ~np.isfinite(features)
    if bad.any():
        axes = tuple(axis for axis in range(features.ndim) if axis != 1)
        column = int(np.argmax(bad.any(axis=axes)))
        name = names[column] if names else str(column)
        raise DataError(f"{path}: column {name!r:.40} has values that are missing or not finite")
