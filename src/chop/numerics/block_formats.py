"""Block formats that have settings: block floating point, minifloats and logarithms."""

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from torch import Tensor

from chop.numerics.arithmetic import Kernel, exponent_of, power_of_two
from chop.numerics.base import FORMATS
from chop.numerics.block import FULL, BlockFormat, Blocks, blocks_of
from chop.numerics.floating import check_exponent_fits
from chop.numerics.grids import FixedGrid, FloatGrid, FloatKernel, LogGrid, LogKernel

WIDEST = torch.finfo(torch.float64)


def _as_tuple(size: Any) -> Any:
    """TOML and JSON have lists where a frozen value needs tuples; one number stands for itself."""
    if isinstance(size, list):
        return tuple(size)
    return (size,) if type(size) is int else size


def _positive(size: tuple[int, ...]) -> tuple[int, ...]:
    if not size or any(n < 1 and n != FULL for n in size):
        raise ValueError("a block size is a list of positive numbers, or -1 for a whole dimension")
    return size


BlockSize = Annotated[tuple[int, ...], BeforeValidator(_as_tuple), AfterValidator(_positive)]


class ShapedBlockFormat(BlockFormat):
    """A block format whose blocks have a shape, and a largest element that always fits."""

    if TYPE_CHECKING:  # each format declares them where the order of its keys wants them
        block_size: BlockSize
        skip_first_dim: bool

    @property
    def peak_exponent(self) -> int:
        return 0

    @property
    def bits(self) -> float:
        # Dimensions taken whole are not known here; without them the shared part is an upper bound.
        return self.element_bits + self.shared_bits / prod(n for n in self.block_size if n != FULL)

    def blocks(self, shape: Sequence[int]) -> Blocks:
        return blocks_of(tuple(shape), self.block_size, self.skip_first_dim)

    def peaks(self, maxima: Tensor) -> Tensor:
        """The largest element after rounding, so that the carry of its rounding fits as well."""
        peaks = torch.empty_like(maxima)
        self.peak_kernel(maxima, peaks)
        return peaks.where(maxima.isfinite(), maxima)

    @cached_property
    @abstractmethod
    def peak_kernel(self) -> Kernel:
        """Rounding to the precision of the grid, whatever the magnitude."""


@FORMATS.register("block_fp")
class BlockFP(ShapedBlockFormat):
    """Block floating point: a sign and `width` - 1 fraction bits each, one exponent per block."""

    label: ClassVar[str] = "BlockFP"

    width: int = Field(ge=2, le=32)
    exponent_width: int = Field(default=8, gt=0, le=10)
    exponent_bias: int | None = Field(default=None, ge=-1000, le=1000)
    block_size: BlockSize = (16,)
    skip_first_dim: bool = True

    @property
    def fraction(self) -> int:
        """Bits of an element after its leading one."""
        return self.width - 2

    @property
    def bias(self) -> int:
        """The exponent bias in use: half the exponent's range, unless given."""
        given = self.exponent_bias
        return 2 ** (self.exponent_width - 1) - 1 if given is None else given

    @cached_property
    def grid(self) -> FixedGrid:
        high = 2 ** (self.width - 1) - 1
        return FixedGrid(self.width, self.fraction, -high, high, sign_magnitude=True)

    @cached_property
    def peak_kernel(self) -> FloatKernel:
        return FloatKernel(WIDEST.tiny, 2.0**-self.fraction, WIDEST.max)

    @property
    def scale_range(self) -> tuple[int, int]:
        # A block's exponent bounds its elements: they are below 2 on the grid, hence the one less.
        return -self.bias - 1, 2**self.exponent_width - 2 - self.bias

    @property
    def shared_bits(self) -> int:
        return self.exponent_width

    def shared_codes(self, scales: Tensor) -> Tensor:
        return exponent_of(scales).add_(self.bias + 1)

    def shared_scales(self, codes: Tensor) -> Tensor:
        return power_of_two(codes - (self.bias + 1))


class SharedBiasFormat(ShapedBlockFormat):
    """A block format whose blocks share the bias of their exponents."""

    if TYPE_CHECKING:
        exponent_bias_width: int

    @property
    @abstractmethod
    def last_code(self) -> int:
        """The largest code of an element's exponent."""

    @property
    def scale_range(self) -> tuple[int, int]:
        half = 2 ** (self.exponent_bias_width - 1)
        return self.last_code - half + 1, self.last_code + half

    @property
    def shared_bits(self) -> int:
        return self.exponent_bias_width

    @property
    def shared_signed(self) -> bool:
        return True

    def shared_codes(self, scales: Tensor) -> Tensor:
        return exponent_of(scales).neg_().add_(self.last_code)

    def shared_scales(self, codes: Tensor) -> Tensor:
        return power_of_two(self.last_code - codes)


@FORMATS.register("block_minifloat")
class BlockMinifloat(SharedBiasFormat):
    """Minifloats with a hidden one and subnormals, with a shared exponent bias in each block."""

    label: ClassVar[str] = "BlockMinifloat"

    width: int = Field(gt=0, le=32)
    exponent_width: int = Field(gt=0, le=8)
    exponent_bias_width: int = Field(default=8, gt=0, le=10)
    block_size: BlockSize = (16,)
    skip_first_dim: bool = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_exponent_fits(self.exponent_width, self.width)
        return self

    @property
    def fraction(self) -> int:
        """Bits after the leading one."""
        return self.width - self.exponent_width - 1

    @property
    def last_code(self) -> int:
        return (1 << self.exponent_width) - 1

    @cached_property
    def grid(self) -> FloatGrid:
        top = 2 - Fraction(2) ** -self.fraction
        return FloatGrid(self.width, self.fraction, 1 - self.last_code, top)

    @cached_property
    def peak_kernel(self) -> FloatKernel:
        return FloatKernel(WIDEST.tiny, 2.0**-self.fraction, WIDEST.max)


@FORMATS.register("block_log")
class BlockLog(SharedBiasFormat):
    """Zero and powers of two, with a shared exponent bias in each block."""

    label: ClassVar[str] = "BlockLog"

    width: int = Field(ge=2, le=9)
    exponent_bias_width: int = Field(default=8, gt=0, le=10)
    block_size: BlockSize = (16,)
    skip_first_dim: bool = True

    @property
    def last_code(self) -> int:
        return (1 << (self.width - 1)) - 1

    @cached_property
    def grid(self) -> LogGrid:
        return LogGrid(self.width, 1 - self.last_code)

    @cached_property
    def peak_kernel(self) -> LogKernel:
        return LogKernel(WIDEST.tiny, 2.0**1023)
