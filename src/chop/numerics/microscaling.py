"""The microscaling (MX) formats of the OCP specification, version 1.0, and NVFP4."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from chop.numerics.arithmetic import exponent_of, power_of_two, working_dtype
from chop.numerics.base import FORMATS, Encoded, require_float
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


TENSOR_BITS = 32
"""Bits of the scale that a whole tensor shares, a float32 number."""
SIGNIFICANT = 2.0**16
"""Its significands are whole multiples of one part in so many, so that all products are exact."""
LEAST_TENSOR_SCALE = 2.0**-100


@FORMATS.register("nvfp4")
class NVFP4(MXFloat):
    """NVFP4: 4-bit floating point, E2M1, an E4M3 scale for 16 elements and one for the tensor.

    The scale of the tensor is a float32 number: `tensor_scale`, or else the one that brings the
    largest element to the largest number there is. With `skip_first_dim`, each index of the first
    dimension of a tensor that has several is a tensor of its own.
    """

    label: ClassVar[str] = "NVFP4"

    block_size: Annotated[int, BeforeValidator(_only_entry)] = Field(default=16, gt=0)
    tensor_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    skip_first_dim: bool = False

    @cached_property
    def grid(self) -> FloatGrid:
        return E2M1

    @property
    def scale_range(self) -> tuple[int, int]:
        return E4M3.low, int(E4M3.top).bit_length() - 1

    def bits_of(self, shape: Sequence[int]) -> float:
        tensors = shape[0] if self.skip_first_dim and len(shape) > 1 else 1
        return super().bits_of(shape) + TENSOR_BITS * tensors / max(prod(shape), 1)

    def tensor_scales(self, x: Tensor) -> Tensor:
        """The scale of the tensor, or of each part of it, shaped so that it broadcasts."""
        if self.tensor_scale is not None:
            return torch.tensor(self.tensor_scale, dtype=torch.float32, device=x.device)
        finite = x.abs().nan_to_num(nan=0.0, posinf=0.0)
        if self.skip_first_dim and x.dim() > 1:
            peaks = finite.reshape(len(x), x[0].numel() if len(x) else 1)
            peaks = torch.nn.functional.pad(peaks, (0, 1)).amax(1)
            peaks = peaks.reshape(-1, *(1,) * (x.dim() - 1))
        else:
            peaks = torch.nn.functional.pad(finite.reshape(-1), (0, 1)).amax()
        scales = peaks.double().div_(float(self.grid.top * E4M3.top)).clamp_(LEAST_TENSOR_SCALE)
        parts, exponents = torch.frexp(scales)
        return torch.ldexp(parts.mul_(SIGNIFICANT).ceil_().div_(SIGNIFICANT), exponents).float()

    def fixed_on(self, x: Tensor) -> "NVFP4":
        is_one = self.tensor_scale is None and not (self.skip_first_dim and x.dim() > 1)
        scale = {"tensor_scale": float(self.tensor_scales(x))} if is_one else None
        return self.model_copy(update=scale)

    def scales(self, peaks: Tensor, dtype: torch.dtype, work: torch.dtype) -> Tensor:
        """The nearest normal number of E4M3; a block with NaN or an infinity is all NaN."""
        wanted = peaks.div(float(self.grid.top)).clamp_(2.0**E4M3.low, float(E4M3.top))
        kernel, _ = E4M3.rounding(torch.float64)
        return kernel(wanted, None).masked_fill_(~peaks.isfinite(), torch.nan)

    def shared_codes(self, scales: Tensor) -> Tensor:
        return E4M3.codes(scales)

    def shared_scales(self, codes: Tensor) -> Tensor:
        return E4M3.values(codes)

    def round_to(self, x: Tensor) -> Tensor:
        require_float(self, x.dtype)
        x = x.detach()
        overall = self.tensor_scales(x).double()
        return as_type(super().round_to(x.double() / overall).mul_(overall), x.dtype)

    def encode(self, x: Tensor) -> Encoded:
        require_float(self, x.dtype)
        x = x.detach()
        overall = self.tensor_scales(x)
        found = super().encode(x.double() / overall.double())
        stored = None if self.tensor_scale is not None else overall
        return found._replace(dtype=x.dtype, overall=stored)

    def decode(self, encoded: Encoded) -> Tensor:
        overall = encoded.overall
        if (overall is None) != (self.tensor_scale is not None):
            raise ValueError("a scale of the tensor is stored exactly where none is given")
        if overall is None:
            overall = self.tensor_scales(encoded.codes)
        elif overall.numel() > max(encoded.codes.shape[0] if encoded.codes.dim() else 1, 1):
            raise ValueError(f"there are more scales than rows: {[*overall.shape]}")
        # An element times its scale is exact in float32, and so is rounded once times the other.
        wide = torch.float32 if encoded.dtype == torch.float32 else torch.float64
        values = super().decode(encoded._replace(dtype=wide))
        return as_type(values.mul_(overall.to(wide)), encoded.dtype)


def as_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of a wide type in another one, which has the largest in place of larger ones."""
    if working_dtype(dtype) == torch.float64:
        return values
    most = torch.finfo(dtype).max
    return values.clamp_(-most, most).to(dtype)
