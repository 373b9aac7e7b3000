"""What is done to rows before a model sees them, in whole arrays."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from chop.preprocessing import Kind, Preprocessing

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Indices = NDArray[np.intp]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: spreads every bit
CHUNK_ROWS = 65_536
LARGE = np.float32(1e38)  # differences of larger numbers may not fit in float32


def distinct_rows(features: Floats, labels: Labels) -> Indices:
    """The index of the first of each set of equal rows, in the order of the rows.

    Rows are told apart by a 64-bit hash, and rows of equal hash are compared, so the answer is
    exact and costs one sort of whole numbers. Negative zeros in `features` become zeros.
    """
    np.add(features, np.float32(0), out=features)  # -0.0 equals 0.0 but has other bits
    hashes = _hashes(features.view(np.uint32), labels)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    same_as = first[group]
    (repeated,) = np.nonzero(same_as != np.arange(len(labels)))
    originals = same_as[repeated]
    equal = np.array_equal(labels[repeated], labels[originals])
    if equal and np.array_equal(features[repeated], features[originals]):
        return np.sort(first)
    whole = np.column_stack([features, labels])  # two different rows share a hash
    return np.sort(np.unique(whole, axis=0, return_index=True)[1])


def _hashes(words: NDArray[np.uint32], labels: Labels) -> NDArray[np.uint64]:
    hashes = labels.astype(np.uint64)
    for column in words.T:
        hashes = (hashes ^ column) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


def original_split(rows: int) -> tuple[Indices, Indices]:
    """Rows for training and for testing, 80 to 20, as the original project draws them.

    It calls scikit-learn's `train_test_split(test_size=0.2, random_state=42)`: a permutation by
    the legacy generator, of which the first fifth (rounded up) is the test part.
    """
    order = np.random.RandomState(42).permutation(rows)
    tests = -(-rows // 5)
    return order[tests:], order[:tests]


def seeded_split(rows: int, seed: int) -> tuple[Indices, Indices, Indices]:
    """Rows for training, validation and testing, 70 to 10 to 20, drawn by `seed`."""
    order = np.random.default_rng(seed).permutation(rows)
    tests, validations = -(-rows // 5), -(-rows // 10)
    rest = order[tests:]
    return rest[validations:], rest[:validations], order[:tests]


def carve_validation(training: Indices) -> tuple[Indices, Indices]:
    """The last tenth of the training rows set aside to validate on."""
    validations = -(-len(training) // 10)
    return training[:-validations], training[-validations:]


def standardise(
    train: Floats,
    *others: Floats,
    channels: bool = False,
    names: Sequence[str] = (),
    divisor: float = 1.0,
    given: Preprocessing | None = None,
) -> Preprocessing:
    """Shift and scale in place so that each column of `train` has mean 0 and deviation 1.

    The mean and deviation are those of `train` alone. A column that does not vary becomes 0
    there and keeps its unit elsewhere.

    Args:
        channels: treat axis 1 of images as the columns.
        names: of the columns.
        divisor: what all values are divided by first.
        given: what is done in place of all this.

    Returns:
        what was done.
    """
    parts = (train, *others)
    if given is None:
        if divisor == 1 and max(train.max(), -train.min()) > LARGE:
            divisor = 4.0  # a power of two, which changes no ratio
        if divisor != 1:
            for part in parts:
                np.divide(part, np.float32(divisor), out=part)
        mean, deviation = moments(train, channels)
        least = np.maximum(1e-6 * np.abs(mean), np.finfo(np.float32).tiny)
        deviation[deviation <= least] = 1.0  # below what float32 can hold apart
        kind: Kind = "channels" if channels else "features"
        done = Preprocessing(kind, tuple(mean), tuple(deviation), names=tuple(names))
        for part in parts:
            scale_rows(part, done)
        return replace(done, divisor=divisor)
    for part in parts:
        scale_rows(part, given)
    return given


def moments(rows: Floats, channels: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the deviation of each column, or of each channel of images."""
    axes = tuple(axis for axis in range(rows.ndim) if axis != 1) if channels else (0,)
    mean = rows.mean(axis=axes, dtype=np.float64, keepdims=True)
    squares = np.zeros_like(mean)
    for start in range(0, len(rows), CHUNK_ROWS):  # a whole float64 copy could fill the memory
        away = rows[start : start + CHUNK_ROWS] - mean
        squares += np.square(away, out=away).sum(axis=axes, keepdims=True)
    return mean.ravel(), np.sqrt(squares * (mean.size / rows.size)).ravel()


def scale_rows(rows: Floats, how: Preprocessing) -> None:
    """Do to rows in place what was done to others, by the same operations in the same order."""
    shape = (1, -1, *[1] * (rows.ndim - 2))
    if how.divisor != 1:
        np.divide(rows, np.float32(how.divisor), out=rows)
    np.subtract(rows, np.array(how.mean, np.float32).reshape(shape), out=rows)
    np.divide(rows, np.array(how.scale, np.float32).reshape(shape), out=rows)
