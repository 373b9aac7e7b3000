"""How features and targets are scaled, on the training rows; users' data sets call it, too."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from chop.dataset.rows import Floats, chunks_of
from chop.preprocessing import Kind, Preprocessing, Targets

LARGE = np.float32(1e38)  # differences of larger numbers may not fit in float32


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
        if divisor == 1 and any(max(rows.max(), -rows.min()) > LARGE for rows in chunks_of(train)):
            divisor = 4.0  # a power of two, which changes no ratio
        if divisor != 1:
            for rows in chain.from_iterable(map(chunks_of, parts)):
                np.divide(rows, np.float32(divisor), out=rows)
        mean, deviation = scaling(train, channels)
        kind: Kind = "channels" if channels else "features"
        done = Preprocessing(kind, tuple(mean), tuple(deviation), names=tuple(names))
        for rows in chain.from_iterable(map(chunks_of, parts)):
            scale_rows(rows, done)
        return replace(done, divisor=divisor)
    for rows in chain.from_iterable(map(chunks_of, parts)):
        scale_rows(rows, given)
    return given


def target_scaling(train: Floats, names: Sequence[str] = ()) -> Targets:
    """How targets are scaled: by the mean and the deviation of those of the training rows."""
    mean, deviation = scaling(train.reshape(len(train), -1), channels=False)
    return Targets(tuple(mean), tuple(deviation), tuple(names))


def scaling(rows: Floats, channels: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the deviation that columns are scaled with: 1 of one that does not vary."""
    mean, deviation = moments(rows, channels)
    least = np.maximum(1e-6 * np.abs(mean), np.finfo(np.float32).tiny)
    deviation[deviation <= least] = 1.0  # below what float32 can hold apart
    return mean, deviation


def moments(rows: Floats, channels: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the deviation of each column, or of each channel of images."""
    axes = tuple(axis for axis in range(rows.ndim) if axis != 1) if channels else (0,)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(rows.shape))
    mean, squares = np.zeros(shape), np.zeros(shape)
    for part in chunks_of(rows):  # a whole float64 copy could fill the memory
        mean += part.sum(axis=axes, dtype=np.float64, keepdims=True)
    mean /= rows.size // mean.size
    for part in chunks_of(rows):
        away = part - mean
        squares += np.square(away, out=away).sum(axis=axes, keepdims=True)
    return mean.ravel(), np.sqrt(squares * (mean.size / rows.size)).ravel()


def scale_rows(rows: Floats, how: Preprocessing) -> None:
    """Do to rows in place what was done to others, by the same operations in the same order."""
    shape = (1, -1, *[1] * (rows.ndim - 2))
    if how.divisor != 1:
        np.divide(rows, np.float32(how.divisor), out=rows)
    np.subtract(rows, np.array(how.mean, np.float32).reshape(shape), out=rows)
    np.divide(rows, np.array(how.scale, np.float32).reshape(shape), out=rows)
