"""Files of jets: the columns they must have and how each kind is read."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chop.dataset.rows import Floats, Labels, default_cache_dir
from chop.dataset.tables import Wanted, read_table
from chop.errors import DataError

FEATURES = (
    "j_zlogz",
    "j_c1_b0_mmdt",
    "j_c1_b1_mmdt",
    "j_c1_b2_mmdt",
    "j_c2_b1_mmdt",
    "j_c2_b2_mmdt",
    "j_d2_b1_mmdt",
    "j_d2_b2_mmdt",
    "j_d2_a1_b1_mmdt",
    "j_d2_a1_b2_mmdt",
    "j_m2_b1_mmdt",
    "j_m2_b2_mmdt",
    "j_n2_b1_mmdt",
    "j_n2_b2_mmdt",
    "j_mass_mmdt",
    "j_multiplicity",
)
CLASSES = ("g", "q", "w", "z", "t")
ONE_HOT = tuple(f"j_{name}" for name in CLASSES)
GROUP = "t_allpar_new"

HDF5_START, PARQUET_START = b"\x89HDF\r\n\x1a\n", b"PAR1"
CERNBOX_ROWS, OPENML_ROWS = 986_806, 830_000
MOST_JETS = 5_000_000
CHUNK_ROWS = 65_536
HDF5_ERRORS = (
    OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, MemoryError,
)  # fmt: skip
"""What h5py raises on damaged files, and NumPy on columns of a size that no memory holds."""


@dataclass(frozen=True)
class Jets:
    """The rows of a file, in the order of `FEATURES` and `CLASSES`, and which row set they are."""

    features: Floats
    labels: Labels
    row_set: str


def read_jets(path: Path) -> Jets:
    """The jets in an HDF5, Parquet or ARFF file, told apart by its first bytes."""
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if start == HDF5_START:
        return _read_hdf5(path)
    if start.startswith(PARQUET_START):
        return _from_table(path, "Parquet")
    if start.lstrip()[:1] in (b"%", b"@"):
        return _from_table(path, "ARFF")
    raise DataError(f"{path}: is neither HDF5 nor ARFF nor Parquet, so it is not a JSC file")


def check_cernbox(path: Path) -> None:
    """Raise unless `path` has the structure of the CERNBox file and as many rows.

    Its authors publish no checksum, so the structure and the row count stand in for one.
    """
    import h5py

    with path.open("rb") as stream:
        if stream.read(8) != HDF5_START:
            raise DataError(f"{path.name} is not HDF5")
    with _hdf5_errors(path), h5py.File(path, "r") as file:
        rows = len(_Columns(file, path))
    if rows != CERNBOX_ROWS:
        raise DataError(f"{path.name} has {rows:,} jets, not {CERNBOX_ROWS:,}")


@contextlib.contextmanager
def _hdf5_errors(path: Path) -> Iterator[None]:
    """Turn what h5py raises on damaged files into a `DataError`."""
    try:
        yield
    except HDF5_ERRORS as error:
        reason = str(error).partition("\n")[0][:120]
        raise DataError(f"{path}: is damaged or cut short ({reason})") from None


class _Columns:
    """The columns of the group, whether it is one table or a column a data set."""

    def __init__(self, file: Any, path: Path) -> None:
        if GROUP not in file:
            raise DataError(f"{path}: has no group {GROUP!r}, so it is not the CERNBox JSC file")
        self.table = file[GROUP]
        names = self.table.dtype.names if hasattr(self.table, "dtype") else tuple(self.table)
        missing = [name for name in (*FEATURES, *ONE_HOT) if name not in (names or ())]
        if missing:
            raise DataError(f"{path}: group {GROUP!r} lacks the columns {', '.join(missing)}")

    def __len__(self) -> int:
        one_table = hasattr(self.table, "dtype")
        return len(self.table) if one_table else len(self.table[FEATURES[0]])

    def read(self, names: tuple[str, ...], start: int, stop: int) -> Floats:
        """Some columns of some rows."""
        if hasattr(self.table, "dtype"):
            rows = self.table.fields(list(names))[start:stop]
            columns = [rows[name] for name in names]
        else:
            columns = [self.table[name][start:stop] for name in names]
        return np.stack(columns, axis=1).astype(np.float32)


def _read_hdf5(path: Path) -> Jets:
    import h5py

    with _hdf5_errors(path), h5py.File(path, "r") as file:
        columns = _Columns(file, path)
        features = np.empty((len(columns), len(FEATURES)), np.float32)
        labels = np.empty(len(columns), np.int64)
        for start in range(0, len(columns), CHUNK_ROWS):  # the file has many columns more
            rows = slice(start, min(start + CHUNK_ROWS, len(columns)))
            features[rows] = columns.read(FEATURES, rows.start, rows.stop)
            labels[rows] = _from_one_hot(columns.read(ONE_HOT, rows.start, rows.stop), path)
    return _check_jets(features, labels, "CERNBox", "HDF5", CERNBOX_ROWS, path)


def _from_one_hot(one_hot: Floats, path: Path) -> Labels:
    if not np.isin(one_hot, (0, 1)).all() or not (one_hot.sum(axis=1) == 1).all():
        raise DataError(f"{path}: some jets do not belong to exactly one of {', '.join(ONE_HOT)}")
    labels: Labels = one_hot.argmax(axis=1).astype(np.int64)
    return labels


def _from_table(path: Path, kind: str) -> Jets:
    """Jets with the columns in our order; OpenML leaves the ``j_`` off their names."""
    table = read_table(path, kind.lower(), Wanted("class"), default_cache_dir())
    places = {
        name if name.startswith("j_") else f"j_{name}": index
        for index, name in enumerate(table.feature_names)
    }
    missing = [name for name in FEATURES if name not in places]
    if missing:
        raise DataError(f"{path}: lacks the columns {', '.join(missing)}")
    if len(table.labels) > MOST_JETS:
        raise DataError(f"{path}: has {len(table.labels):,} jets; a JSC file has {CERNBOX_ROWS:,}")
    assert table.classes is not None
    names = [str(each).strip(" '\"\r") for each in table.classes]
    unknown = sorted(set(names) - set(CLASSES))
    if unknown:
        raise DataError(f"{path}: unknown classes {', '.join(unknown[:5])} in 'class'")
    labels = np.array([CLASSES.index(name) for name in names], np.int64)[table.labels]
    features = np.ascontiguousarray(table.features[:, [places[name] for name in FEATURES]])
    return _check_jets(features, labels, "OpenML 42468", kind, OPENML_ROWS, path)


def _check_jets(
    features: Floats, labels: Labels, origin: str, kind: str, expected: int, path: Path
) -> Jets:
    if len(labels) < 10:
        raise DataError(f"{path}: has {len(labels)} jets, too few to split")
    for name, column in zip(FEATURES, features.T, strict=True):
        if not np.isfinite(column).all():
            raise DataError(f"{path}: column {name!r} has values that are not finite")
    rows = f"{len(labels):,} jets"
    if len(labels) == expected:
        return Jets(features, labels, f"the {origin} row set ({kind}, {rows})")
    form = f"{rows} in the form of the {origin} row set ({kind}), which has {expected:,}"
    return Jets(features, labels, form)
