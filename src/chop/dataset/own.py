"""A user's own rows: a file with a column of classes or of targets, given with `--dataset-path`."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.dataset.cache import cached, file_sha256
from chop.dataset.info import register_dataset
from chop.dataset.preprocess import standardise, target_scaling
from chop.dataset.rows import (
    DatasetRequest,
    Splits,
    paired,
    rows_fingerprint,
    seeded_split,
)
from chop.dataset.tables import Table, Wanted, class_indices, read_table
from chop.dataset.tables.growing import entries_at, picked_rows
from chop.errors import DataError

LEAST_ROWS = 10
STEPS = "own-1"  # part of the cache key: another number where the steps below change


def own(kind: str, request: DatasetRequest) -> Splits:
    """The rows of a file in one format, split by the seed and standardised on the training part."""
    path = request.path
    if path is None:
        raise DataError(f"data set {kind!r} is a custom file: name it with --dataset-path")
    if not path.is_file():
        what = "is a folder; name the file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}")
    digest = file_sha256(path, request.cache_dir)
    key: dict[str, Any] = {
        "steps": STEPS,
        "kind": kind,
        "file": digest,
        "label": request.label_column,
        "seed": request.seed,
    }
    key |= {"targets": True} if request.regression else {}
    key |= {"classes": list(request.class_names)} if request.class_names else {}
    return cached(request, key, partial(_prepared, kind, request), path, {path: digest})


def _prepared(kind: str, request: DatasetRequest) -> Splits:
    path, folder = request.path, request.cache_dir
    assert path is not None
    table = read_table(path, kind, Wanted(request.label_column, request.regression), folder)
    rows = len(table.labels)
    if rows < LEAST_ROWS:
        some = "1 row is" if rows == 1 else f"{rows} rows are"
        raise DataError(f"{path}: {some} too few; give at least {LEAST_ROWS}")
    labels, class_names = _labels(table, request)
    fingerprint = rows_fingerprint(table.features, labels)
    chosen = seeded_split(len(labels), request.seed)
    parts = [picked_rows(table.features, rows, folder) for rows in chosen]
    of_parts = [picked_rows(labels, rows, folder) for rows in chosen]
    done = standardise(
        *parts,
        channels=table.features.ndim > 2,
        names=table.feature_names,
        given=request.preprocessing,
    )
    if request.regression and done.targets is None:
        done = replace(done, targets=target_scaling(of_parts[0], table.target_names))
    return Splits(
        *paired(parts, of_parts),
        source=f"{kind}: {len(labels):,} rows, split by seed {request.seed}",
        fingerprint=fingerprint,
        class_names=class_names,
        feature_names=table.feature_names,
        preprocessing=done,
    )


def _labels(table: Table, request: DatasetRequest) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Targets as they are, or classes as indices with their names."""
    if table.classes is None:
        return table.labels, ()
    assert request.path is not None
    indices, names = class_indices(table.classes, request.path, table.class_names)
    if wanted := request.class_names:
        indices = np.array([wanted.index(name) for name in names], np.int64)[indices]
    return entries_at(table.labels, indices, request.cache_dir), wanted or names


LINES = {
    "csv": "Your own CSV file with a header, through --dataset-path and --label-column",
    "npz": "Your own NumPy archive of features and labels, through --dataset-path",
    "parquet": "Your own Parquet file, through --dataset-path and --label-column",
}

for _kind, _line in LINES.items():
    register_dataset(_kind, description=_line)(partial(own, _kind))
