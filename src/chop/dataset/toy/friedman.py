"""Numbers to be predicted, drawn from a formula that is known, so that the least error is, too."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from chop.dataset.info import register_dataset
from chop.dataset.preprocess import standardise, target_scaling
from chop.dataset.rows import (
    DatasetRequest,
    Splits,
    pair_splits,
    rows_fingerprint,
)

SEED = 1991
SIZES = (8_000, 1_000, 2_000)
"""Rows for training, validation and testing."""
FEATURES = tuple(f"x{number}" for number in range(1, 11))
TARGET = "y"
NOISE = 1.0
"""The deviation of the noise, which nobody can predict: a mean absolute error of 0.8 at least."""

Reals = NDArray[np.float64]


@register_dataset(
    "friedman",
    regression=True,
    num_features=len(FEATURES),
    feature_names=FEATURES,
    num_targets=1,
    target_names=(TARGET,),
)
def friedman(request: DatasetRequest) -> Splits:
    """Regression by Friedman's formula: ten features, five of which matter, and noise."""
    numbers = np.random.RandomState(SEED)  # numpy keeps its numbers the same in all versions
    ends = np.cumsum(SIZES)
    measured = numbers.random_sample((ends[-1], len(FEATURES)))
    noise = NOISE * numbers.standard_normal(ends[-1])
    targets = (formula(measured) + noise).astype(np.float32)
    features = measured.astype(np.float32)
    fingerprint = rows_fingerprint(features, targets)
    parts, labels = np.split(features, ends[:-1]), np.split(targets, ends[:-1])
    done = standardise(*parts, names=FEATURES, given=request.preprocessing)
    if done.targets is None:
        done = replace(done, targets=target_scaling(labels[0], (TARGET,)))
    return Splits(
        *pair_splits(parts, labels),
        source=f"friedman: {ends[-1]:,} rows of Friedman's formula, made here",
        fingerprint=fingerprint,
        feature_names=FEATURES,
        preprocessing=done,
    )


def formula(x: Reals) -> Reals:
    """Compute a function that Friedman made for regression (Annals of Statistics, 1991)."""
    found: Reals = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    return found + 10 * x[:, 3] + 5 * x[:, 4]
