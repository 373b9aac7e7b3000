"""Pictures changed at random while they are trained on: flips, shifted crops, cut-out squares.

What is drawn depends on the seed, the epoch and the batch alone, so a run that resumes sees the
pictures that an uninterrupted one would have seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from chop.errors import ConfigError, UnknownNameError

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
