"""Rows of image data sets, once their pixels are read."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chop.dataset.cache import file_sha256, load_or_build
from chop.dataset.download import fetch, has_md5
from chop.dataset.preprocess import standardise
from chop.dataset.rows import (
    DatasetRequest,
    Splits,
    carve_validation,
    pair_splits,
    rows_fingerprint,
)
from chop.errors import DataError

Pixels = NDArray[np.uint8]
STEPS = "images-1"  # part of the cache key: another number where the steps below change


@dataclass(frozen=True)
class Images:
    """Pixels `(rows, channels, height, width)` and labels, for training and for testing."""

    train: Pixels
    train_labels: Pixels
    test: Pixels
    test_labels: Pixels
    brightest: float = 255.0


def prepare_splits(
    request: DatasetRequest, files: Sequence[Path], read: Callable[[], Images], origin: Path
) -> Splits:
    """The splits of an image data set, from the cache if its files were read before.

    The last tenth of the training images validates, so the test images stay unseen until the end.
    Pixels are standardised per channel on the rest.
    """
    sources = {file: file_sha256(file, request.cache_dir) for file in files}
    key = {"steps": STEPS, "name": request.name, "files": list(sources.values())}
    return load_or_build(request, key, lambda: _splits(read(), request), origin, sources)


def fetch_files(
    request: DatasetRequest, base: str, md5s: dict[str, str], where_to_get: str
) -> list[Path]:
    """The published files, fetched to the cache and compared with their published MD5 sums."""
    folder = request.cache_dir / "downloads" / request.name
    try:
        return [fetch(base + name, folder / name, has_md5(md5)) for name, md5 in md5s.items()]
    except DataError as error:
        raise DataError(
            f"{error}; get {', '.join(md5s)} from {where_to_get} and name the folder or archive "
            f"with --dataset-path or {request.variable}"
        ) from None


def _splits(images: Images, request: DatasetRequest) -> Splits:
    train, validation = carve_validation(np.arange(len(images.train)))
    pixels = (images.train[train], images.train[validation], images.test)
    parts = [each.astype(np.float32) for each in pixels]
    done = standardise(*parts, channels=True, divisor=images.brightest, given=request.preprocessing)
    labels = [images.train_labels[train], images.train_labels[validation], images.test_labels]
    counts = f"{len(images.train):,} training and {len(images.test):,} test images"
    return Splits(
        *pair_splits(parts, (each.astype(np.int64) for each in labels)),
        source=f"{request.name}: {counts}",
        fingerprint=_fingerprint(images),
        preprocessing=done,
    )


def _fingerprint(images: Images) -> str:
    train = rows_fingerprint(images.train, images.train_labels)
    test = rows_fingerprint(images.test, images.test_labels)
    return hashlib.sha256(f"{train}{test}".encode()).hexdigest()
