"""Simulated jets in the columns of the JSC data set, shipped with the package."""

from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

from chop.dataset.info import register_dataset
from chop.dataset.physical.jets import CLASSES, FEATURES
from chop.dataset.preprocess import standardise
from chop.dataset.rows import DatasetRequest, Splits, rows_fingerprint

TRAIN_END, VALIDATION_END = 60_000, 80_000

SOURCE = (
    "jsc-sim: 100,000 simulated stand-in jets shipped with chop, not the JSC data set; "
    "accuracies on it are not JSC results"
)


@register_dataset(
    "jsc-sim",
    physical_data_point_classification=True,
    num_features=len(FEATURES),
    num_classes=len(CLASSES),
    feature_names=FEATURES,
    class_names=CLASSES,
)
def jsc_sim(request: DatasetRequest) -> Splits:
    """Simulated stand-in for JSC: 16 jet features, 5 classes; ships with chop, is not JSC."""
    features, labels = _arrays()
    parts = np.split(features.copy(), [TRAIN_END, VALIDATION_END])
    done = standardise(*parts, names=FEATURES, given=request.preprocessing)
    train, validation, test = zip(parts, np.split(labels, [TRAIN_END, VALIDATION_END]), strict=True)
    fingerprint = rows_fingerprint(features, labels)
    return Splits(
        train, validation, test, source=SOURCE, fingerprint=fingerprint, preprocessing=done
    )


@cache
def _arrays() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The raw rows, unpacked once per process."""
    place = files("chop.dataset.physical") / "data" / "jsc-sim.npz"
    with as_file(place) as path, np.load(path, allow_pickle=False) as stored:
        return stored["features"], stored["labels"].astype(np.int64)
