"""Tables in NumPy archives: an array of features, and arrays that are as long."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.tables.pieces import (
    MOST_ROW_BYTES,
    PIECE_BYTES,
    PIECE_ROWS,
    SMALL,
    Column,
    Piece,
    TableFile,
    check_unpacked,
    unreadable,
)
from chop.errors import DataError

FEATURE_ARRAYS = ("features", "x", "data", "images")
NUMBERS = "fiub"
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, NotImplementedError,
    MemoryError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What NumPy and zipfile raise on damaged files."""


@dataclass(frozen=True)
class StoredArray:
    """An array as the head of its file describes it."""

    member: str
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.row_shape, dtype=object))


@dataclass(frozen=True)
class Archive:
    """The arrays of a NumPy archive, of which only the heads were read."""

    path: Path
    arrays: dict[str, StoredArray]

    def whole(self, name: str) -> NDArray[Any]:
        """Return a small array; pickled ones raise a ValueError."""
        array = self.arrays[name]
        if array.dtype.hasobject:
            raise ValueError("it is pickled")
        if not array.shape:
            raise DataError(f"{self.path}: array {name!r:.40} is a single value")
        pieces = [each[0] for each in self.pieces([name])]
        return np.concatenate(pieces) if pieces else np.empty(array.shape, array.dtype)

    def pieces(self, names: Sequence[str]) -> Iterator[list[NDArray[Any]]]:
        """Yield the same rows of arrays of equal length, some at a time."""
        stored = [self.arrays[name] for name in names]
        for name, each in zip(names, stored, strict=True):
            self._check_rows(name, each)
        width = max(1, sum(each.row_bytes for each in stored))
        most, rows = max(1, min(PIECE_ROWS, PIECE_BYTES // width)), stored[0].shape[0]
        with _one_line(self.path), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            readers = [stack.enter_context(_reader(archive, each)) for each in stored]
            for start in range(0, rows, most):
                yield [reader.rows(min(most, rows - start)) for reader in readers]
            for reader in readers:
                reader.finish()

    def _check_rows(self, name: str, array: StoredArray) -> None:
        """Refuse an array whose rows cannot be read one after another in little memory."""
        where = f"{self.path}: array {name!r:.40}"
        if array.row_bytes > MOST_ROW_BYTES:
            raise DataError(f"{where} has rows of {array.row_bytes:,} bytes, more than 16 MB")
        if array.by_columns and len(array.shape) > 1 and array.row_bytes * array.shape[0] > SMALL:
            raise DataError(f"{where} is stored by columns: save numpy.ascontiguousarray of it")


class _Rows:
    """Reads the rows of one array from its stream."""

    def __init__(self, stream: IO[bytes], array: StoredArray) -> None:
        self.stream = stream
        self.array = array
        self.turned: NDArray[Any] | None = None
        self.at = 0

    def rows(self, count: int) -> NDArray[Any]:
        if not self.array.by_columns or len(self.array.shape) < 2:
            return self._read((count, *self.array.row_shape))
        if self.turned is None:
            self.turned = self._read(self.array.shape[::-1]).T
        self.at += count
        return self.turned[self.at - count : self.at]

    def _read(self, shape: tuple[int, ...]) -> NDArray[Any]:
        wanted = self.array.dtype.itemsize * int(np.prod(shape, dtype=object))
        content = self.stream.read(wanted)
        if len(content) != wanted:
            raise ValueError("an array is cut short")
        return np.frombuffer(content, self.array.dtype).reshape(shape)

    def finish(self) -> None:
        """Read to the end, where zipfile compares the checksum."""
        if self.stream.read(1):
            raise ValueError("an array has more rows than its head says")


@contextmanager
def _reader(archive: zipfile.ZipFile, array: StoredArray) -> Iterator[_Rows]:
    with archive.open(array.member) as stream:
        _head(stream)
        yield _Rows(stream, array)


def _head(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(path, "NumPy archive", error) from None


def open_archive(path: Path) -> Archive:
    """Open a NumPy archive; what its arrays claim to be is compared with how long they are."""
    arrays: dict[str, StoredArray] = {}
    with _one_line(path), zipfile.ZipFile(path) as archive:
        check_unpacked(path, sum(part.file_size for part in archive.infolist()))
        for part in archive.infolist():
            if not part.filename.endswith(".npy"):
                continue
            with archive.open(part) as stream:
                shape, by_columns, dtype = _head(stream)
                left = part.file_size - stream.tell()
            found = StoredArray(part.filename, shape, by_columns, dtype)
            size = dtype.itemsize * int(np.prod(shape, dtype=object))
            if min(shape, default=1) < 0 or (size != left and not dtype.hasobject):
                raise ValueError(f"{part.filename} says that it is {shape} of {dtype}")
            arrays[part.filename.removesuffix(".npy")] = found
    return Archive(path, arrays)


def feature_array(archive: Archive, without: str = "") -> str:
    """Return the name of the array that holds the features."""
    found = [name for name in archive.arrays if name.lower() in FEATURE_ARRAYS and name != without]
    if len(found) != 1:
        usual, have = " or ".join(FEATURE_ARRAYS), ", ".join(archive.arrays)
        raise DataError(f"{archive.path}: needs one array called {usual} (it has {have:.200})")
    return found[0]


def open_npz(path: Path, *, strict: bool = False) -> TableFile:
    """Open an archive as a table: its columns are the place of each row, and arrays as long.

    `strict` is for readers of text.
    """
    archive = open_archive(path)
    features = feature_array(archive)
    stored = archive.arrays[features]
    if len(stored.shape) < 2 or stored.dtype.kind not in NUMBERS:
        raise DataError(f"{path}: array {features!r} must hold numbers, as (rows, …)")
    others = [
        name
        for name, each in archive.arrays.items()
        if each.shape == stored.shape[:1] and not each.dtype.hasobject and name != "row"
    ]
    names = ("row", *others)
    pieces = partial(_pieces, archive, [features, *others])
    return TableFile(path, names, pieces, width=stored.shape[1])


def _pieces(archive: Archive, names: list[str]) -> Iterator[Piece]:
    start = 0
    for features, *others in archive.pieces(names):
        count = len(features)
        columns = [Column(np.arange(start, start + count)), *map(Column, others)]
        with np.errstate(over="ignore"):
            yield Piece(start, count, columns, features.astype(np.float32))
        start += count
