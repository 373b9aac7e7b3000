"""Jet substructure classification: 16 features of a jet, 5 kinds of particle it came from.

Two row sets go by this name. The CERNBox file is HDF5 with 986,806 jets; OpenML 42468 is ARFF or
Parquet with 830,000. They are different jets: `source` and `fingerprint` say which was read, and
the cache keeps them apart by the SHA-256 of the file.
"""

from functools import partial
from pathlib import Path

from chop.dataset.cache import file_sha256, load_or_build
from chop.dataset.download import checksum_file, fetch
from chop.dataset.info import register_dataset
from chop.dataset.physical.jets import CLASSES, FEATURES, check_cernbox, read_jets
from chop.dataset.preprocess import standardise
from chop.dataset.rows import (
    DatasetRequest,
    Splits,
    carve_validation,
    distinct_rows,
    original_split,
    pair_splits,
    rows_fingerprint,
)
from chop.errors import DataError

URL = "https://cernbox.cern.ch/index.php/s/jvFd5MoWhGs1l5v/download"
OPENML = "https://www.openml.org/d/42468"
FILE_NAME = "jsc-cernbox.h5"
STEPS = "jsc-1"  # part of the cache key: another number where the steps below change


@register_dataset(
    "jsc",
    dataset_source="others",
    physical_data_point_classification=True,
    num_features=len(FEATURES),
    num_classes=len(CLASSES),
    feature_names=FEATURES,
    class_names=CLASSES,
)
def jsc(request: DatasetRequest) -> Splits:
    """Jet substructure classification: 16 features, 5 classes; CERNBox or OpenML 42468."""
    given = request.given_path
    path = given or _download(request)
    if not path.is_file():
        what = "is a folder; name the file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}")
    digest = file_sha256(path, request.cache_dir)
    if not given:
        _check_unchanged(path, digest)
    key = {"steps": STEPS, "file": digest}
    return load_or_build(request, key, partial(_prepare, path, request), path, {path: digest})


def _download(request: DatasetRequest) -> Path:
    """The CERNBox file in the cache, fetched if it is not there."""
    target = request.cache_dir / "downloads" / FILE_NAME
    try:
        return fetch(URL, target, check_cernbox)
    except DataError as error:
        raise DataError(
            f"{error}; get the file from {URL} or {OPENML} and name it with --dataset-path or "
            "CHOP_JSC, or use the data set jsc-sim, which needs no file"
        ) from None


def _check_unchanged(path: Path, digest: str) -> None:
    """Refuse a fetched file that is no longer what was fetched."""
    if checksum_file(path).exists() and checksum_file(path).read_text(encoding="utf-8") != digest:
        raise DataError(f"{path}: has changed since it was fetched; delete it to fetch it again")


def _prepare(path: Path, request: DatasetRequest) -> Splits:
    """Duplicates dropped, split as the original does, a tenth set aside, standardised."""
    jets = read_jets(path)
    fingerprint = rows_fingerprint(jets.features, jets.labels)
    kept = distinct_rows(jets.features, jets.labels)
    training, testing = original_split(len(kept))
    chosen = [kept[rows] for rows in (*carve_validation(training), testing)]
    parts = [jets.features[rows] for rows in chosen]
    done = standardise(*parts, names=FEATURES, given=request.preprocessing)
    return Splits(
        *pair_splits(parts, (jets.labels[rows] for rows in chosen)),
        source=f"jsc: {jets.row_set}, {len(jets.labels) - len(kept):,} duplicates dropped",
        fingerprint=fingerprint,
        class_names=CLASSES,
        feature_names=FEATURES,
        preprocessing=done,
    )
