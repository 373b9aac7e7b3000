"""A user's own rows: a file with a column of classes, given with `--dataset-path`."""

from functools import partial

import numpy as np

from chop.dataset.cache import cached, file_sha256
from chop.dataset.info import register_dataset
from chop.dataset.rows import (
    DatasetRequest,
    Splits,
    paired,
    rows_fingerprint,
    seeded_split,
    standardise,
)
from chop.dataset.tables import READERS, class_indices
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
    key = {
        "steps": STEPS,
        "kind": kind,
        "file": digest,
        "label": request.label_column,
        "seed": request.seed,
    }
    return cached(request, key, partial(_prepared, kind, request), path, {path: digest})


def _prepared(kind: str, request: DatasetRequest) -> Splits:
    path = request.path
    assert path is not None
    table = READERS[kind](path, request.label_column)
    rows = len(table.classes)
    if rows < LEAST_ROWS:
        some = "1 row is" if rows == 1 else f"{rows} rows are"
        raise DataError(f"{path}: {some} too few; give at least {LEAST_ROWS}")
    labels, class_names = class_indices(table.classes, path, table.class_names)
    fingerprint = rows_fingerprint(table.features, labels)
    chosen = seeded_split(len(labels), request.seed)
    parts = [np.ascontiguousarray(table.features[rows]) for rows in chosen]
    done = standardise(
        *parts,
        channels=table.features.ndim > 2,
        names=table.feature_names,
        given=request.preprocessing,
    )
    return Splits(
        *paired(parts, (labels[rows] for rows in chosen)),
        source=f"{kind}: {len(labels):,} rows, split by seed {request.seed}",
        fingerprint=fingerprint,
        class_names=class_names,
        feature_names=table.feature_names,
        preprocessing=done,
    )


LINES = {
    "csv": "Your own CSV file with a header, through --dataset-path and --label-column",
    "npz": "Your own NumPy archive of features and labels, through --dataset-path",
    "parquet": "Your own Parquet file, through --dataset-path and --label-column",
}

for _kind, _line in LINES.items():
    register_dataset(_kind, description=_line)(partial(own, _kind))
