"""Tables in files as pieces: rows that follow one another, few enough to be held in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.rows import Floats
from chop.errors import DataError

PIECE_BYTES, PIECE_CELLS, PIECE_ROWS = 8 << 20, 1 << 17, 1 << 16
"""What a piece may hold at most, if it is more than one row."""
MOST_COLUMNS, MOST_ROW_BYTES = 100_000, 1 << 24
"""What a row may hold at most."""
SMALL, MOST_PACKED = 256 << 20, 200
"""Bytes that any file may unpack to, and how many times its size a larger one may: numbers that
are measured hardly shrink, so one that unpacks to more is a trap."""
LISTED = 5
"""Names that a message lists."""


@dataclass(frozen=True)
class Column:
    """The cells of one column in a piece: texts as they are, or values of the file's own kind.

    Args:
        missing: which values the file does not have.
    """

    values: list[str] | NDArray[Any]
    missing: NDArray[np.bool_] | None = None

    def texts(self) -> list[str]:
        """Return the cells as text; that of a missing value is empty."""
        if isinstance(self.values, list):
            return self.values
        short = self.values.dtype.kind == "f" and self.values.dtype != np.float64
        texts = [str(value) for value in (self.values if short else self.values.tolist())]
        if self.missing is not None:
            for row in np.flatnonzero(self.missing):
                texts[row] = ""
        return texts

    def numbers(self) -> NDArray[np.float64]:
        """Return the cells as numbers; a cell that does not hold one is NaN."""
        try:
            found = np.array(self.values, np.float64)
        except ValueError:
            assert isinstance(self.values, list)
            found = np.array([_number(text) for text in self.values])
        if self.missing is not None:
            found[self.missing] = np.nan
        return found


@dataclass(frozen=True)
class Piece:
    """Rows of a table that follow one another.

    Args:
        start: the rows of the table before them.
        features: the features of each row, where the file keeps these apart from its columns.
    """

    start: int
    rows: int
    columns: Sequence[Column]
    features: Floats | None = None

    def matrix(self, places: Sequence[int]) -> Floats:
        """Return some columns as float32, NaN or infinite where a cell holds no such number."""
        found = np.empty((self.rows, len(places)), np.float32)
        with np.errstate(over="ignore"):
            for at, place in enumerate(places):
                found[:, at] = self.columns[place].numbers()
        return found


@dataclass(frozen=True)
class TableFile:
    """A table in a file, of which only the head was read.

    Args:
        texts: the columns whose cells the file declares to be something else than numbers.
        width: the features or channels of a row, where the file keeps these apart from its columns.
    """

    path: Path
    names: tuple[str, ...]
    pieces: Callable[[], Iterator[Piece]]
    delimiter: str = ","
    texts: frozenset[str] = frozenset()
    width: int | None = None

    def __post_init__(self) -> None:
        if len(self.names) > MOST_COLUMNS:
            raise DataError(
                f"{self.path}: has {len(self.names):,} columns; a table may have {MOST_COLUMNS:,}"
            )


def what_is_wrong(text: str) -> str:
    """Say why a cell that is not a finite number of float32 cannot be a feature."""
    if not text.strip():
        return "is empty"
    number = _number(text)
    if not np.isnan(number):
        return f"says {text.strip():.40}, which is beyond float32"
    is_nan = text.strip().lower().lstrip("+-") == "nan"
    return "says nan" if is_nan else f"says {text!r:.40}, which is not a number"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def is_number(text: str) -> bool:
    """Return whether a cell holds a number, be it finite or not."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def list_names(names: Sequence[str]) -> str:
    """Return the first of some names for a message."""
    return ", ".join(names[:LISTED]) + (", …" if names[LISTED:] else "")


def unreadable(path: Path, kind: str, error: Exception) -> DataError:
    """Return the error of a file that is not what its name says."""
    reason = str(error).partition("\n")[0]
    if isinstance(error, MemoryError):
        return DataError(f"{path}: there is not enough memory to read it ({reason[:120]})")
    return DataError(f"{path}: is damaged or not a {kind} file ({reason[:120]})")


def check_unpacked(path: Path, unpacked: int) -> None:
    """Refuse a file that is small only until it is unpacked."""
    size = path.stat().st_size
    if unpacked > max(SMALL, MOST_PACKED * size):
        raise DataError(
            f"{path}: {size:,} bytes would unpack to {unpacked:,}, so it holds no measured numbers"
        )
