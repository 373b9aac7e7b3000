"""Fixed point with a width and a binary point for each channel or element."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chop.errors import ConfigError
from chop.numerics.arithmetic import ShapedKernel
from chop.numerics.grids import FixedGrid, Rounding


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
    """What `FixedKernel` and `FixedModesKernel` do, with limits for each element."""

    grid: "GranularGrid"
    dtype: torch.dtype
    """Of the tensors to round, which may be narrower than what the kernel works on."""
    _limits: dict[torch.device, Limits] = field(default_factory=dict)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        self.grid.require_shape(x.shape)
        scale, low, high, zero = self._limits.get(x.device) or self._limits_for(x)
        modes = self.grid.kinds[0]
        if modes.half_up or modes.wraps:
            out.copy_(_rounded_by_mode(x, scale, low, high, modes))
        else:
            torch.mul(x, scale, out=out)
            out.round_()
        out.clamp_(low, high).div_(scale).add_(zero)

    def _limits_for(self, x: Tensor) -> Limits:
        kinds = self.grid.kinds
        low, high = zip(*(kind.limits(self.dtype) for kind in kinds), strict=True)
        zero = [-0.0 if kind.low and kind.high else 0.0 for kind in kinds]
        spread = (self.grid.spread(numbers, x) for numbers in (low, high, zero))
        return self._limits.setdefault(x.device, Limits(self.grid.scales(x), *spread))


def _rounded_by_mode(
    x: Tensor, scale: Tensor, low: Tensor, high: Tensor, modes: FixedGrid
) -> Tensor:
    """The codes of `x`, rounded half up or wrapped around or both."""
    span = high - low + 1
    if modes.wraps:  # what is larger than this has no lower bits: it is whole periods
        x = torch.where(x.abs() < span / scale * 2.0**53, x, x * 0)
    scaled = x * scale
    codes = scaled.round()
    if modes.half_up:
        codes = torch.where(scaled - codes == 0.5, codes + 1, codes)
    if modes.wraps:
        codes = codes - codes.div(span).floor_().mul_(span)
        codes = torch.where(codes > high, codes - span, codes)
    return codes


@dataclass(frozen=True, eq=False)
class GranularGrid:
    """Fixed-point grids of several kinds in the same modes, and the kind of each element."""

    kinds: tuple[FixedGrid, ...]
    index: NDArray[np.int64]
    """The place in `kinds` for each element; broadcasts against tensors from the right."""
    has_nan: bool = False

    @property
    def bits(self) -> int:
        return max(kind.bits for kind in self.kinds)

    @property
    def signed_codes(self) -> bool:
        return any(kind.signed_codes for kind in self.kinds)

    def rounding(self, dtype: torch.dtype) -> Rounding:
        works = {kind.rounding(dtype)[1] for kind in self.kinds}
        work = torch.float64 if torch.float64 in works else torch.float32
        return GranularKernel(self, dtype), work

    def require_shape(self, shape: Sequence[int]) -> None:
        """Refuse a tensor against which the widths do not broadcast."""
        own, given = self.index.shape, tuple(shape)
        tail = given[len(given) - len(own) :]
        if len(own) > len(given) or any(n not in (1, m) for n, m in zip(own, tail, strict=True)):
            raise ConfigError(
                f"an integer format whose widths have the shape {own} cannot round a tensor of "
                f"shape {given}: shapes are compared from the right, and 1 stands for any size"
            )

    def spread(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        """The number of each kind wherever the kind is, in the type of `like`."""
        spread = np.array(numbers, dtype=np.float64)[self.index]
        return torch.from_numpy(spread).to(like.device, like.dtype)

    def scales(self, like: Tensor) -> Tensor:
        """Codes for each unit."""
        return self.spread([2.0**kind.fraction for kind in self.kinds], like)

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
        patterns = (self.spread([not kind.low for kind in self.kinds], wide) > 0) & (codes < 0)
        return torch.where(patterns, wide + 2.0**self.bits, wide).div_(self.scales(wide))


def granular_grid(
    width: NDArray[np.int64],
    frac: NDArray[np.int64],
    signed: NDArray[np.int64],
    kind: Callable[[int, int, bool], FixedGrid],
) -> GranularGrid:
    """The grid of widths, binary points and signs that broadcast against each other."""
    numbers, index = np.unique((width << 9 | frac + 256) << 1 | signed, return_inverse=True)
    kinds = [kind(n >> 10, (n >> 1 & 511) - 256, bool(n & 1)) for n in numbers.tolist()]
    shape = np.broadcast_shapes(width.shape, frac.shape, signed.shape)
    return GranularGrid(tuple(kinds), index.reshape(shape))
