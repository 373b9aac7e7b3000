"""Tables in Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from chop.dataset.tables.pieces import (
    PIECE_BYTES,
    PIECE_CELLS,
    PIECE_ROWS,
    Column,
    Piece,
    TableFile,
    check_unpacked,
    unreadable,
)
from chop.errors import DataError

BUFFER = 1 << 16  # bytes of each column that are read ahead
POINTER = 16  # bytes that a value of no fixed size counts for
LONGEST = 131_072  # characters of a cell, as many as the csv module reads back


def open_parquet(path: Path, *, strict: bool = False) -> TableFile:
    """Open a Parquet file; `strict` is for readers of text."""
    with _one_line(path):
        file = _file(path)
        schema, about = file.schema_arrow, file.metadata
        names = tuple(str(name) for name in schema.names)
        groups = range(about.num_row_groups)
        check_unpacked(path, max((about.row_group(n).total_byte_size for n in groups), default=0))
        texts = {name for name, kind in zip(names, schema.types, strict=True) if _is_text(kind)}
        nested = [n for n, kind in zip(names, schema.types, strict=True) if kind.num_fields]
    if nested:
        raise DataError(f"{path}: column {nested[0]!r:.40} holds lists or tables, not cells")
    return TableFile(path, names, partial(_pieces, path), texts=frozenset(texts))


def _file(path: Path, dictionaries: list[str] | None = None) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(
        path,
        read_dictionary=dictionaries,
        buffer_size=BUFFER,
        page_checksum_verification=True,
    )


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises on damaged files into a `DataError`."""
    try:
        from pyarrow import ArrowException
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        yield
    except (ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        raise unreadable(path, "Parquet", error) from None


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _pieces(path: Path) -> Iterator[Piece]:
    """Yield the rows some at a time, each different text once: a column of few texts is small."""
    from pyarrow import types

    with _one_line(path):
        schema = _file(path).schema_arrow
        kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        of_texts = [field.name for field in schema if any(kind(field.type) for kind in kinds)]
        file = _file(path, of_texts)
        width = sum(_bytes_of(kind) for kind in schema.types)
        most = min(PIECE_ROWS, PIECE_BYTES // max(1, width), PIECE_CELLS // max(1, len(schema)))
        batches = file.iter_batches(max(1, most), use_threads=False)
    start = 0
    while True:
        with _one_line(path):
            batch = next(batches, None)
            if batch is None:
                return
            columns = [_column(each, path) for each in batch.columns]
        if batch.num_rows:
            yield Piece(start, batch.num_rows, columns)
        start += batch.num_rows


def _bytes_of(kind: Any) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # of no fixed size
        return POINTER


def _column(values: Any, path: Path) -> Column:
    from pyarrow import compute, types

    if types.is_dictionary(values.type):
        texts = [_text(each, path) for each in values.dictionary.to_pylist()]
        return Column([texts[at] if at is not None else "" for at in values.indices.to_pylist()])
    if _is_text(values.type):
        return Column([_text(each, path) for each in values.to_pylist()])
    if not values.null_count:
        return Column(values.to_numpy(zero_copy_only=False))
    missing = values.is_null().to_numpy(zero_copy_only=False)
    zero = values.type.to_pandas_dtype()(0)
    return Column(compute.fill_null(values, zero).to_numpy(zero_copy_only=False), missing)


def _text(value: Any, path: Path) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise DataError(f"{path}: a column holds neither numbers nor text") from None
    text = "" if value is None else str(value)
    if len(text) > LONGEST:
        raise DataError(f"{path}: a cell has more than {LONGEST:,} characters")
    return text
