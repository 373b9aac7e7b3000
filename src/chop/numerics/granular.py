"""Fixed point with a width and a binary point for each channel or element."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chop.errors import ConfigError
from chop.numerics.arithmetic import (
    ShapedKernel,
    half_way_up,
    run_while_compiling,
    working_dtype,
    zero_unless,
)
from chop.numerics.grids import FixedGrid, Rounding, fixed_grid


class Limits(NamedTuple):
    """The scale of each element, and the codes between which it stays."""

    scale: Tensor
    low: Tensor
    high: Tensor
    zero: Tensor
    """Added to the result: 0 where the sign of a zero would be chance, elsewhere -0, which adds
    nothing at all."""


@dataclass(eq=False)
class GranularKernel(ShapedKernel):
    """The work of `FixedKernel` and `FixedModesKernel`, with limits for each element."""

    grid: "GranularGrid"
    dtype: torch.dtype
    """Of the tensors to round, which may be narrower than what the kernel works on."""
    _limits: dict[torch.device, Limits] = field(default_factory=dict)

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        self.grid.require_shape(x.shape)
        if torch.compiler.is_compiling() or x.device not in self._limits:
            prepare_limits(self, x.dtype, x.device)
        scale, low, high, zero = self._limits[x.device]
        if self.grid.half_up or self.grid.wraps:
            codes = _rounded_by_mode(x, scale, low, high, self.grid)
            out = codes if out is None else out.copy_(codes)
        else:
            out = torch.mul(x, scale, out=out).round_()
        return out.clamp_(low, high).div_(scale).add_(zero)


@run_while_compiling
def prepare_limits(kernel: GranularKernel, work: torch.dtype, device: torch.device) -> None:
    """Work out the limits of a kernel that works on one type, on one device."""
    if device in kernel._limits:
        return
    grid, like = kernel.grid, torch.empty(0, dtype=work, device=device)
    kinds, _ = grid.kinds
    low, high = zip(*(kind.limits(kernel.dtype) for kind in kinds), strict=True)
    zero = [-0.0 if kind.low and kind.high else 0.0 for kind in kinds]
    spread = (grid.spread(numbers, like) for numbers in (low, high, zero))
    kernel._limits[device] = Limits(grid.scales(like), *spread)


def _rounded_by_mode(
    x: Tensor, scale: Tensor, low: Tensor, high: Tensor, modes: "GranularGrid"
) -> Tensor:
    """The codes of `x`, rounded half up or wrapped around or both."""
    span = high - low + 1
    if modes.wraps:  # what is larger than this has no lower bits: it is whole periods
        x = zero_unless(x.abs() < span / scale * 2.0**53, x)
    scaled = x * scale
    codes = half_way_up(scaled) if modes.half_up else scaled.round_()
    if modes.wraps:
        codes = codes - codes.div(span).floor_().mul_(span)
        codes = torch.where(codes > high, codes - span, codes)
    return codes


@dataclass(frozen=True, eq=False)
class GranularGrid:
    """A fixed-point grid for each element of a tensor, all in the same modes.

    Widths, binary points and signs are arrays that broadcast against the tensor from the right.
    """

    width: NDArray[Any]
    frac: NDArray[Any]
    signed: NDArray[Any]
    half_up: bool
    wraps: bool
    has_nan: bool = False

    @property
    def bits(self) -> int:
        return int(self.width.max())

    @property
    def signed_codes(self) -> bool:
        return bool((self.signed * self.width).any())

    @cached_property
    def kinds(self) -> tuple[list[FixedGrid], NDArray[np.uint16]]:
        """The grids that occur, and which of them each element has."""
        numbers, index = np.unique(
            (self.width.astype(np.int32) << 9 | self.frac + 256) << 1 | self.signed,
            return_inverse=True,
        )
        kinds = [
            fixed_grid(n >> 10, (n >> 1 & 511) - 256, bool(n & 1), self.half_up, self.wraps)
            for n in numbers.tolist()
        ]
        return kinds, index.reshape(self.shape).astype(np.uint16)  # 54 · 253 · 2 kinds at most

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the three arrays have together."""
        return np.broadcast_shapes(self.width.shape, self.frac.shape, self.signed.shape)

    @property
    def saturation(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        kinds, index = self.kinds
        low, high = zip(*(kind.saturation for kind in kinds), strict=True)
        return np.array(low)[index], np.array(high)[index]

    def rounding(self, dtype: torch.dtype) -> Rounding:
        work = working_dtype(dtype, fraction=self.bits if self.wraps else 0)
        return GranularKernel(self, dtype), work

    def require_shape(self, shape: Sequence[int]) -> None:
        """Refuse a tensor against which the arrays do not broadcast."""
        require_broadcast("widths", self.shape, tuple(shape))

    def spread(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        """The number of each kind wherever the kind is, in the type of `like`."""
        spread = np.array(numbers, dtype=np.float64)[self.kinds[1]]
        return torch.from_numpy(spread).to(like.device, like.dtype)

    def scales(self, like: Tensor) -> Tensor:
        """Codes for each unit."""
        return self.spread([2.0**kind.fraction for kind in self.kinds[0]], like)

    def codes(self, y: Tensor) -> Tensor:
        """The codes; beside negative ones, an unsigned code that is too large is a bit pattern."""
        self.require_shape(y.shape)
        wide = y.to(torch.float64)
        codes = wide.mul(self.scales(wide)).to(torch.int64)
        if not self.signed_codes:
            return codes
        half = 1 << (self.bits - 1)
        return torch.where(codes < half, codes, codes - 2 * half)

    def values(self, codes: Tensor) -> Tensor:
        self.require_shape(codes.shape)
        wide = codes.to(torch.float64)
        unsigned = self.spread([not kind.low for kind in self.kinds[0]], wide) > 0
        patterns = unsigned & (codes < 0)
        return torch.where(patterns, wide + 2.0**self.bits, wide).div_(self.scales(wide))


def require_broadcast(what: str, own: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Refuse a tensor of a shape against which something of a format does not broadcast."""
    tail = given[len(given) - len(own) :]
    if len(own) > len(given) or any(n not in (1, m) for n, m in zip(own, tail, strict=True)):
        raise ConfigError(
            f"an integer format whose {what} have the shape {own} cannot round a tensor of "
            f"shape {given}: shapes are compared from the right, and 1 stands for any size"
        )


Array = NDArray[np.int64]


def code_limits(
    width: NDArray[Any], frac: NDArray[Any], signed: NDArray[Any]
) -> tuple[Array, Array, Array]:
    """Binary point, smallest and largest code of fixed point; no bits at all have the code 0."""
    width, frac = width.astype(np.int64), frac.astype(np.int64)
    below = np.where((signed > 0) & (width > 0), 1 << np.maximum(width - 1, 0), 0)
    return frac, -below, (1 << width) - 1 - below
