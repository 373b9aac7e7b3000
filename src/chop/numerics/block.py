"""Tensors cut into blocks, and formats whose elements share a power of two in each."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.numerics.arithmetic import (
    CHUNK,
    binade,
    code_dtype,
    largest_along,
    last_exponent,
    refuse_nan,
)
from chop.numerics.base import Encoded
from chop.numerics.grids import GridFormat

LEAST = {torch.float32: -149, torch.float64: -1022}  # exponents a scale may have in these types
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


class BlockFormat(GridFormat):
    """A format that rounds elements to one grid, scaled for each block by a power of two."""

    nan_spreads: ClassVar[bool] = False
    """NaN in a block makes all of it NaN; else it stays in its place and sets no scale."""

    @property
    @abstractmethod
    def peak_exponent(self) -> int:
        """The exponent, on the grid, that the largest element of a block is brought to."""

    @property
    @abstractmethod
    def scale_range(self) -> tuple[int, int]:
        """The smallest and the largest exponent of a scale."""

    @abstractmethod
    def blocks(self, shape: Sequence[int]) -> Blocks:
        """The way a tensor of this shape is cut."""

    @abstractmethod
    def peaks(self, maxima: Tensor) -> Tensor:
        """The magnitude whose exponent sets the scale of each block, from its largest one."""

    @abstractmethod
    def shared_codes(self, scales: Tensor) -> Tensor:
        """The codes of what blocks share, from their scales."""

    @abstractmethod
    def shared_scales(self, codes: Tensor) -> Tensor:
        """The scales, in float64, that codes of what blocks share stand for."""

    @property
    def shared_signed(self) -> bool:
        """True if the part that blocks share is coded in two's complement."""
        return False

    def bits_of(self, shape: Sequence[int]) -> float:
        return self.element_bits + self.shared_bits * self.blocks(shape).per_element

    def round_to(self, x: Tensor) -> Tensor:
        blocks = self.blocks(x.shape)
        whole = self._wide(x).reshape(blocks.shape)
        out = torch.empty(blocks.shape, dtype=whole.dtype, device=x.device)
        # Pieces that end where blocks end stay in the cache and give the same result.
        rows = blocks.rows(CHUNK)
        for piece, result in zip(torch.split(whole, rows), torch.split(out, rows), strict=True):
            self._round_piece(piece, result, x.dtype)
        return out.to(x.dtype).reshape(x.shape)

    def _round_piece(self, x: Tensor, out: Tensor, dtype: torch.dtype) -> None:
        blocks = self.blocks(x.shape)
        cut = blocks.cut(x)
        elements = torch.empty_like(cut) if blocks.is_padded else out.view(cut.shape)
        scales = self._divide(cut, elements, dtype)
        elements.mul_(scales.to(x.dtype))
        if blocks.is_padded:
            out.copy_(blocks.join(elements))

    def encode(self, x: Tensor) -> Encoded:
        blocks = self.blocks(x.shape)
        cut = blocks.cut(self._wide(x).reshape(blocks.shape))
        elements = torch.empty_like(cut)
        scales = self._divide(cut, elements, x.dtype).reshape(blocks.count)
        codes = blocks.join(self.grid.codes(self.storable(elements))).reshape(x.shape)
        return Encoded(
            codes.to(code_dtype(self.element_bits, self.grid.signed_codes)),
            self.shared_codes(scales).to(code_dtype(self.shared_bits, self.shared_signed)),
            x.dtype,
        )

    def decode(self, encoded: Encoded) -> Tensor:
        assert encoded.shared is not None
        blocks = self.blocks(encoded.codes.shape)
        codes = encoded.codes.reshape(blocks.shape)
        shared = encoded.shared.reshape(blocks.count)
        out = torch.empty(blocks.shape, dtype=encoded.dtype, device=codes.device)
        rows = blocks.rows(CHUNK)
        pieces = (torch.split(tensor, rows) for tensor in (codes, out))
        depths = torch.split(shared, rows // blocks.size[0])
        for piece, result, own in zip(*pieces, depths, strict=True):
            result.copy_(self._decode_piece(piece, own))
        return out.reshape(encoded.codes.shape)

    def _decode_piece(self, codes: Tensor, shared: Tensor) -> Tensor:
        blocks = self.blocks(codes.shape)
        scales = blocks.spread(self.shared_scales(shared.to(torch.int64)))
        return blocks.join(self.grid.values(blocks.cut(codes.to(torch.int64))).mul(scales))

    def storable(self, elements: Tensor) -> Tensor:
        """The elements, if all of them have codes."""
        refuse_nan(elements, type(self).__name__)
        return elements

    def scales(self, peaks: Tensor, dtype: torch.dtype, work: torch.dtype) -> Tensor:
        """The scale of each block of a tensor of type `dtype`, in float64."""
        low, high = self.scale_range
        low = max(low, LEAST[work])
        high = max(low, min(high, last_exponent(dtype) - self.peak_exponent))
        return binade(peaks).mul_(2.0**-self.peak_exponent).clamp_(2.0**low, 2.0**high)

    def _wide(self, x: Tensor) -> Tensor:
        """The tensor in its working type."""
        return x.detach().to(self._rounding(x.dtype)[1])

    def _divide(self, cut: Tensor, elements: Tensor, dtype: torch.dtype) -> Tensor:
        """Write the elements of blocks, on the grid, into `elements`; give back the scales."""
        torch.abs(cut, out=elements)
        inside = tuple(range(1, cut.dim(), 2))
        maxima = largest_along(elements, inside)
        if not self.nan_spreads and bool(maxima.isnan().any()):
            maxima = largest_along(elements.nan_to_num_(nan=0, posinf=torch.inf), inside)
        scales = self.scales(self.peaks(maxima.to(torch.float64)), dtype, cut.dtype)
        torch.div(cut, scales.to(cut.dtype), out=elements)
        self._rounding(dtype)[0](elements, elements)
        return scales
