"""What is done to rows before a network sees them.

Features and targets are scaled on the training rows; users' data sets call it, too. Pictures may be
changed at random while they are trained on: what is drawn depends on the seed, the epoch and the
batch alone, so a run that resumes sees the pictures that an uninterrupted one would have seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from chop.dataset.rows import Floats, chunks_of
from chop.errors import ConfigError, UnknownNameError
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


Change = Callable[[Tensor, int, torch.Generator], Tensor]


def flip(images: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Mirror every second picture, by chance."""
    mirrored = torch.rand(len(images), generator=draw) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def crop(images: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Shift every picture by at most `size` pixels; zeros, the mean, come in from the border."""
    height, width = images.shape[2:]
    windows = F.pad(images, (size, size, size, size)).unfold(2, height, 1).unfold(3, width, 1)
    down, right = torch.randint(2 * size + 1, (2, len(images)), generator=draw)
    return windows[torch.arange(len(images)), :, down, right]


def cutout(images: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Set a square of `size` pixels to zero, the mean, somewhere in every picture."""
    hidden = torch.ones(len(images), 1, 1, 1, dtype=torch.bool)
    for axis, length in zip((2, 3), images.shape[2:], strict=True):
        centre = torch.randint(length, (len(images), 1), generator=draw)
        away = torch.arange(length) - (centre - size // 2)
        shape = [len(images), 1, 1, 1]
        shape[axis] = length
        hidden = hidden & ((away >= 0) & (away < size)).reshape(shape)
    return images.masked_fill(hidden, 0.0)


CHANGES: dict[str, tuple[Change, int]] = {
    "flip": (flip, 0),
    "crop": (crop, 4),
    "cutout": (cutout, 8),
}
"""Each change with the pixels that it takes if none are given."""


@dataclass(frozen=True)
class Augmentation:
    """Changes to make one after the other, each with its size in pixels."""

    changes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> "Augmentation":
        """Return what ``flip,crop:4,cutout:8`` asks for."""
        return cls(tuple(_change(part.strip()) for part in text.split(",")))

    def check(self, shape: Sequence[int]) -> None:
        """Refuse rows that are not pictures, and changes that are larger than they are."""
        if len(shape) != 3:
            raise ConfigError(
                f"--augment changes pictures, but a row of this data set is {tuple(shape)}"
            )
        for name, size in self.changes:
            if size > min(shape[1:]):
                raise ConfigError(f"--augment {name}:{size} is larger than {shape[1]}×{shape[2]}")

    def apply(self, images: Tensor, seed: int, epoch: int, batch: int) -> Tensor:
        """Return the pictures of one batch, changed as this epoch draws it."""
        state = np.random.SeedSequence([seed, epoch, batch]).generate_state(1, np.uint64)[0]
        draw = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        for name, size in self.changes:
            images = CHANGES[name][0](images, size, draw)
        return images


def _change(part: str) -> tuple[str, int]:
    name, _, size = part.partition(":")
    if name not in CHANGES:
        raise UnknownNameError("augmentation", name, CHANGES)
    usual = CHANGES[name][1]
    if not size:
        return name, usual
    if not usual or not size.isascii() or not size.isdigit() or not 0 < int(size) < 1_000:
        right = f"{name}:{usual}" if usual else name
        raise ConfigError(f"--augment: {part!r} is not a change of pictures; write {right}")
    return name, int(size)
