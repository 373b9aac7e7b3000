"""A tensor cut into blocks, and put together again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch.nn.functional as F
from torch import Tensor

FULL = -1  # in a block size: the whole extent of the dimension


@dataclass(frozen=True)
class Blocks:
    """The way a tensor of one shape is cut: the extent of a block in each dimension."""

    shape: tuple[int, ...]
    size: tuple[int, ...]

    @cached_property
    def count(self) -> tuple[int, ...]:
        """The number of blocks along each dimension."""
        return tuple(-(-n // b) for n, b in zip(self.shape, self.size, strict=True))

    @cached_property
    def is_padded(self) -> bool:
        """The blocks reach beyond the tensor."""
        return any(n % b for n, b in zip(self.shape, self.size, strict=True))

    def rows(self, elements: int) -> int:
        """An extent of the first dimension with whole blocks and about so many elements."""
        depth = self.size[0]
        wanted = elements * self.shape[0] // max(math.prod(self.shape), 1)
        return max(wanted // depth, 1) * depth

    @property
    def per_element(self) -> float:
        """Blocks for each element, the cut-off parts of padded blocks counted in full."""
        elements = math.prod(self.shape)
        return math.prod(self.count) / elements if elements else 1.0

    def cut(self, x: Tensor) -> Tensor:
        """`x` with each dimension split into (which block, where inside); padded with zeros."""
        margins = [c * b - n for c, b, n in zip(self.count, self.size, self.shape, strict=True)]
        if any(margins):
            x = F.pad(x, [side for margin in reversed(margins) for side in (0, margin)])
        return x.reshape(interleave(self.count, self.size))

    def join(self, blocks: Tensor) -> Tensor:
        """The tensor that was cut, in its own shape and without the padding."""
        x = blocks.reshape([c * b for c, b in zip(self.count, self.size, strict=True)])
        return x[tuple(slice(n) for n in self.shape)]

    def spread(self, shared: Tensor) -> Tensor:
        """One value for each block, shaped so that it broadcasts over cut tensors."""
        return shared.reshape(interleave(self.count, [1] * len(self.size)))


def interleave(counts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Counts and sizes in turn."""
    return [n for pair in zip(counts, sizes, strict=True) for n in pair]


@lru_cache(maxsize=1024)  # the shapes of a model are few, and small tensors are rounded often
def blocks_of(shape: tuple[int, ...], size: tuple[int, ...], skip_first_dim: bool) -> Blocks:
    """The blocks of a tensor.

    Args:
        size: aligned with the last dimensions; what is missing, -1 or too large means all of it.
        skip_first_dim: no block reaches across the first dimension of a tensor that has several.
    """
    shape = shape or (1,)
    given = size[-len(shape) :]
    given = (FULL,) * (len(shape) - len(given)) + given
    extents = [max(n, 1) for n in shape]
    sizes = [n if b == FULL else min(b, n) for n, b in zip(extents, given, strict=True)]
    if skip_first_dim and len(shape) > 1:
        sizes[0] = 1
    return Blocks(shape, tuple(sizes))
