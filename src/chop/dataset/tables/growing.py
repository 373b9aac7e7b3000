"""Rows that grow piece by piece: in memory while they are few, else in a file without a name."""

import tempfile
import weakref
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chop.dataset.rows import Indices, forget_pages, rows_in_chunk
from chop.errors import OutputError

IN_MEMORY = 64 << 20
"""Bytes of an array that are held in memory."""
PICKED_BYTES, PICKED_ROWS = 128 << 20, 1 << 23
"""What is picked from a file in one pass through it."""


class GrowingRows:
    """An array that grows at its end.

    Args:
        folder: where the file is made that holds more than fits in memory; nothing stays there.
    """

    def __init__(self, kind: DTypeLike, folder: Path) -> None:
        self.kind = np.dtype(kind)
        self.folder = folder
        self.rows = 0
        self._pieces: list[NDArray[Any]] = []
        self._held = 0
        self._row_shape: tuple[int, ...] = ()
        self._file: IO[bytes] | None = None

    def add(self, piece: NDArray[Any]) -> None:
        """Add rows at the end."""
        self.rows, self._row_shape = self.rows + len(piece), piece.shape[1:]
        self._pieces.append(np.ascontiguousarray(piece, self.kind))
        self._held += self._pieces[-1].nbytes
        if self._held > IN_MEMORY:
            self._write()

    def _write(self) -> None:
        try:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  (mapped later)
                weakref.finalize(self, self._file.close)
            for piece in self._pieces:
                self._file.write(piece.data)
            self._file.flush()
        except OSError as error:
            raise OutputError(
                f"{self.folder}: cannot be written ({error.strerror or error}); CHOP_CACHE names "
                "another cache folder"
            ) from None
        self._pieces, self._held = [], 0

    def array(self) -> NDArray[Any]:
        """Return all rows; of an array in a file, changes go to that file."""
        shape = (self.rows, *self._row_shape)
        if self._file is None:
            return np.concatenate(self._pieces) if self._pieces else np.empty(shape, self.kind)
        self._write()
        return np.memmap(self._file, self.kind, "r+", shape=shape)


def picked_rows(rows: NDArray[Any], places: Indices, folder: Path) -> NDArray[Any]:
    """Return the rows at some places in this order, in a file of their own if they are many.

    A file is gone through from its start to its end, once for each part of the places: who
    asks for a row here and a row there has all of the file in memory soon.
    """
    found = GrowingRows(rows.dtype, folder)
    most = max(1, min(PICKED_ROWS, PICKED_BYTES // max(1, rows[:1].nbytes)))
    for start in range(0, len(places), most):
        found.add(_pick(rows, places[start : start + most]))
    return found.array()


def _pick(rows: NDArray[Any], places: Indices) -> NDArray[Any]:
    order = np.argsort(places)
    ascending = places[order]
    found = np.empty((len(places), *rows.shape[1:]), rows.dtype)
    step = rows_in_chunk(rows)
    bounds = np.searchsorted(ascending, np.arange(0, len(rows) + step, step))
    for low, high in pairwise(bounds.tolist()):
        found[order[low:high]] = rows[ascending[low:high]]
        forget_pages(rows)
    return found


def entries_at(places: NDArray[Any], table: NDArray[Any], folder: Path) -> NDArray[Any]:
    """Return the entry of a small table at each of many places."""
    found = GrowingRows(table.dtype, folder)
    step = rows_in_chunk(places)
    for start in range(0, len(places), step):
        found.add(table[places[start : start + step]])
        forget_pages(places)
    return found.array()
