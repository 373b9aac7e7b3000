"""The microscaling (MX) formats of the OCP specification, version 1.0."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from chop.numerics.arithmetic import exponent_of, power_of_two
from chop.numerics.base import FORMATS
from chop.numerics.block import BlockFormat, Blocks, blocks_of
from chop.numerics.floating import E4M3, E5M2, MinifloatIEEE
from chop.numerics.grids import FixedGrid, FloatGrid, Grid

SCALE_BIAS = 127  # of E8M0, the type of the shared scale
SCALE_NAN = 255
E2M3 = MinifloatIEEE(width=6, exponent_width=2).grid
E3M2 = MinifloatIEEE(width=6, exponent_width=3).grid
E2M1 = MinifloatIEEE(width=4, exponent_width=2).grid
# The most negative code, -2, is left unused so that the range is symmetric.
INT8 = FixedGrid(bits=8, fraction=6, low=-127, high=127)


def _only_entry(size: Any) -> Any:
    """A list of one, as other block formats write their sizes, stands for its entry."""
    return size[0] if isinstance(size, list) and len(size) == 1 else size


class MXFormat(BlockFormat):
    """Elements in blocks along the last dimension that share a power-of-two scale, E8M0."""

    nan_spreads: ClassVar[bool] = True

    block_size: Annotated[int, BeforeValidator(_only_entry)] = Field(default=32, gt=0)

    @property
    def bits(self) -> float:
        return self.element_bits + self.shared_bits / self.block_size

    @property
    def shared_bits(self) -> int:
        return 8

    @property
    def scale_range(self) -> tuple[int, int]:
        return -SCALE_BIAS, SCALE_BIAS

    def blocks(self, shape: Sequence[int]) -> Blocks:
        leading = (1,) * (len(shape) - 1)
        return blocks_of(tuple(shape), (*leading, self.block_size), skip_first_dim=False)

    def peaks(self, maxima: Tensor) -> Tensor:
        return maxima

    def scales(self, peaks: Tensor, dtype: torch.dtype, work: torch.dtype) -> Tensor:
        """A block that holds NaN or an infinity has the scale NaN, which makes all of it NaN."""
        return super().scales(peaks, dtype, work).masked_fill_(~peaks.isfinite(), torch.nan)

    def storable(self, elements: Tensor) -> Tensor:
        return elements.nan_to_num(nan=0.0)  # the scale says that they are NaN

    def shared_codes(self, scales: Tensor) -> Tensor:
        codes = exponent_of(scales).add_(SCALE_BIAS)
        return codes.masked_fill_(scales.isnan(), SCALE_NAN)

    def shared_scales(self, codes: Tensor) -> Tensor:
        return power_of_two(codes - SCALE_BIAS).masked_fill_(codes == SCALE_NAN, torch.nan)


class MXFloat(MXFormat):
    """An MX format whose elements are floating point."""

    @cached_property
    @abstractmethod
    def grid(self) -> FloatGrid:
        """The numbers of an element."""

    @cached_property
    def peak_exponent(self) -> int:
        return int(self.grid.top).bit_length() - 1


@FORMATS.register("mxint8")
class MXInt8(MXFormat):
    """MXINT8: 8-bit integers with 6 fractional bits and a shared scale."""

    label: ClassVar[str] = "MXInt8"

    @cached_property
    def grid(self) -> Grid:
        return INT8

    @property
    def peak_exponent(self) -> int:
        return 0


@FORMATS.register("mxfp8")
class MXFP8(MXFloat):
    """MXFP8: 8-bit floating point, E4M3 or E5M2, and a shared scale."""

    label: ClassVar[str] = "MXFP8"

    element: Literal["e4m3", "e5m2"] = "e4m3"

    @cached_property
    def grid(self) -> FloatGrid:
        return {"e4m3": E4M3, "e5m2": E5M2}[self.element]


@FORMATS.register("mxfp6")
class MXFP6(MXFloat):
    """MXFP6: 6-bit floating point, E2M3 or E3M2, and a shared scale."""

    label: ClassVar[str] = "MXFP6"

    element: Literal["e2m3", "e3m2"] = "e2m3"

    @cached_property
    def grid(self) -> FloatGrid:
        return {"e2m3": E2M3, "e3m2": E3M2}[self.element]


@FORMATS.register("mxfp4")
class MXFP4(MXFloat):
    """MXFP4: 4-bit floating point, E2M1, and a shared scale."""

    label: ClassVar[str] = "MXFP4"

    element: Literal["e2m1"] = "e2m1"

    @cached_property
    def grid(self) -> FloatGrid:
        return E2M1
