"""Tables in pieces: what is read does not depend on where it is kept meanwhile."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from test_own import FEATURES, KINDS, WRITERS

from chop.dataset import MaseDataModule, Preprocessing
from chop.dataset import rows as row_limits
from chop.dataset.rows import StoredRows
from chop.dataset.tables import archives, growing, parquet, text
from chop.dataset.tables.growing import GrowingRows, picked_rows
from chop.errors import DataError

LIMITS = {
    growing: {"IN_MEMORY": 100, "PICKED_BYTES": 400},
    row_limits: {"CHUNK_BYTES": 96, "MANY_BYTES": 0},
    text: {"PIECE_CELLS": 30},
    parquet: {"PIECE_CELLS": 30},
    archives: {"PIECE_BYTES": 60},
}


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_are_the_same_in_files_as_in_memory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def module(cache: str) -> MaseDataModule:
        path = WRITERS[kind](tmp_path)
        data = MaseDataModule(kind, 16, path=path, seed=4, cache_dir=tmp_path / cache)
        data.setup()
        return data

    whole = module("whole")
    for owner, limits in LIMITS.items():
        for name, limit in limits.items():
            monkeypatch.setattr(owner, name, limit)
    pieces = module("pieces")
    assert pieces.fingerprint == whole.fingerprint
    assert pieces.dataset_info == whole.dataset_info
    ours, theirs = (np.array(each.preprocessing.mean) for each in (pieces, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    for mine, other in zip(pieces.all_dataloader(), whole.all_dataloader(), strict=True):
        torch.testing.assert_close(mine[0], other[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(mine[1], other[1])
    left = {path.suffix for path in (tmp_path / "pieces").rglob("*") if path.is_file()}
    assert left == {".npy", ".json", ".lock"}


def test_rows_that_are_scaled_as_a_network_wants_leave_memory_when_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "MANY_BYTES", 0)
    data = MaseDataModule("npz", 16, path=WRITERS["npz"](tmp_path), cache_dir=tmp_path / "cache")
    data = data.scaled_as(Preprocessing("features", (1, 2), (3, 4)))
    forgotten: list[bool] = []
    forget = StoredRows.forget
    monkeypatch.setattr(StoredRows, "forget", lambda rows: forgotten.append(forget(rows) is None))
    assert sum(len(labels) for _, labels in data.all_dataloader()) == len(KINDS)
    assert len(forgotten) == 3


def test_growing_rows_are_in_a_file_when_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(600, dtype=np.float32).reshape(200, 3)
    for most, kind in ((10_000, np.ndarray), (500, np.memmap)):
        monkeypatch.setattr(growing, "IN_MEMORY", most)
        found = GrowingRows(np.float32, tmp_path)
        for start in range(0, 200, 7):
            found.add(rows[start : start + 7])
        assert type(found.array()) is kind
        assert np.array_equal(found.array(), rows)
        order = np.random.default_rng(0).permutation(200)
        monkeypatch.setattr(growing, "PICKED_ROWS", 90)
        monkeypatch.setattr(row_limits, "CHUNK_ROWS", 33)
        assert np.array_equal(picked_rows(found.array(), order, tmp_path), rows[order])
    assert list(tmp_path.iterdir()) == []


def archive(path: Path, shape: tuple[int, ...], descr: str = "<f4", size: int = 0) -> Path:
    """An archive whose features claim to be of a shape."""
    with zipfile.ZipFile(path, "w") as file:
        with file.open("features.npy", "w") as stream:
            head = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, head)
            stream.write(bytes(size))
        with file.open("labels.npy", "w") as stream:
            np.lib.format.write_array(stream, np.arange(20) % 2)
    return path


@pytest.mark.parametrize(
    ("shape", "descr", "size", "message"),
    [
        ((10**13, 16), "<f4", 1280, "is damaged or not a NumPy archive"),
        ((20, 2**62), "<f4", 1280, "is damaged or not a NumPy archive"),
        ((-5, 16), "<f4", 1280, "is damaged or not a NumPy archive"),
        ((2, 300), "<f4", 2400, "'features' has rows of 1,200 bytes, more than"),
    ],
)
def test_absurd_shapes_are_refused_before_they_are_read(
    shape: tuple[int, ...],
    descr: str,
    size: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archives, "MOST_ROW_BYTES", 1_000)
    path = archive(tmp_path / "a.npz", shape, descr, size)
    with pytest.raises(DataError, match=message):
        list(archives.open_npz(path).pieces())


def test_nested_columns_are_no_cells(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet as pq

    for column in ([[1, 2]] * 20, [{"x": 1}] * 20):
        pq.write_table(pyarrow.table({"a": column, "y": [0, 1] * 10}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="column 'a' holds lists or tables, not cells"):
            MaseDataModule("parquet", 4, path=tmp_path / "a.parquet").setup()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([f"n{place}" for place in range(40)], "the label column has more than 30 classes"),
        ([f"{place}.5" for place in range(40)], "the label column holds real numbers"),
        (["x" * 300] * 40, "a class has more than 256 characters"),
    ],
)
def test_labels_that_are_no_classes(
    labels: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chop.dataset.tables.MOST_CLASSES", 30)
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"1,{label}\n" for label in labels))
    with pytest.raises(DataError, match=message):
        MaseDataModule("csv", 4, path=path).setup()


def test_too_many_rows_to_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chop.dataset.tables.MOST_ROWS", len(KINDS) - 1)
    with pytest.raises(DataError, match="has more than 199 rows"):
        MaseDataModule("npz", 4, path=WRITERS["npz"](tmp_path)).setup()
    assert len(FEATURES) == 200
