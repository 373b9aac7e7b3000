"""The sets of numbers that formats are made of: how to round to them and how to code them.

A grid knows neither blocks nor configuration. Number formats put grids to use: one for all
elements of a tensor, or one scaled by a power of two for each block.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import nextafter, sqrt
from typing import Any, Protocol

import torch
from torch import Tensor

from chop.numerics.arithmetic import (
    Kernel,
    binade,
    exponent_below,
    exponent_of,
    floor_to,
    half_way_up,
    last_exponent,
    power_of_two,
    run_while_compiling,
    working_dtype,
    zero_unless,
)
from chop.numerics.base import NumberFormat, require_float

BELOW_ROOT = {  # the largest number below the square root of two
    torch.float32: float.fromhex("0x1.6a09e6p+0"),
    torch.float64: float.fromhex("0x1.6a09e667f3bccp+0"),
}
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

Rounding = tuple[Kernel, torch.dtype]
"""A rounding kernel and the type of the tensors it works on."""


class Grid(Protocol):
    """Numbers, their codes, and the rule that rounds to them."""

    @property
    def bits(self) -> int:
        """Bits of a code."""

    @property
    def signed_codes(self) -> bool:
        """Codes are two's-complement integers rather than bit patterns."""

    @property
    def has_nan(self) -> bool:
        """NaN has a code."""

    @property
    def saturation(self) -> tuple[Any, Any]:
        """Numbers below the first and from the second on are beyond the last code."""

    def rounding(self, dtype: torch.dtype) -> Rounding:
        """The rounding of tensors of one type."""

    def codes(self, y: Tensor) -> Tensor:
        """The codes, as int64, of numbers of this grid."""

    def values(self, codes: Tensor) -> Tensor:
        """The numbers, as float64, of int64 codes."""


@dataclass(frozen=True)
class FixedKernel:
    """Rounding to multiples of ``1 / scale`` between two codes."""

    scale: float
    low: float
    high: float

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        # In place on one buffer: up to four times faster than the plain expression.
        out = torch.mul(x, self.scale, out=out)
        out.round_().clamp_(self.low, self.high).mul_(1 / self.scale)
        return out if self.low else out.abs_()  # clamping at 0 leaves the sign of zero to chance


@dataclass(frozen=True)
class FixedModesKernel:
    """The same with half-way cases that go up, or codes that wrap around, or both."""

    scale: float
    low: float
    high: float
    half_up: bool
    period: float | None
    """How far apart numbers of one code are; None saturates."""

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        if self.period is not None:
            # Larger numbers are whole periods, for want of lower bits, and might overflow below.
            x = zero_unless(x.abs() < self.period * 2.0**53, x)
        scaled = x * self.scale
        codes = half_way_up(scaled) if self.half_up else scaled.round_()
        if self.period is not None:
            span = self.high - self.low + 1  # a power of two, by which division is exact
            codes = codes - codes.div(span).floor_().mul_(span)
            codes = torch.where(codes > self.high, codes - span, codes)
        out = torch.mul(codes.clamp_(self.low, self.high), 1 / self.scale, out=out)
        return out if self.low else out.abs_()


@dataclass(frozen=True)
class FixedGrid:
    """Integers from `low` to `high` divided by ``2**fraction``."""

    bits: int
    fraction: int
    low: int
    high: int
    sign_magnitude: bool = False
    has_nan: bool = False
    half_up: bool = False
    wraps: bool = False

    @property
    def signed_codes(self) -> bool:
        return self.low < 0 and not self.sign_magnitude

    @property
    def saturation(self) -> tuple[float, float]:
        if not self.high > self.low:  # of zero bits, which make everything zero on purpose
            return -torch.inf, torch.inf
        step = 2.0**-self.fraction
        return (self.low - 0.5) * step, (self.high + 0.5) * step

    def rounding(self, dtype: torch.dtype) -> Rounding:
        """Rounding that saturates at the last code which the tensor's type can hold."""
        scale, work = 2.0**self.fraction, working_dtype(dtype)
        if self.wraps:  # which needs every code, so that wide ones are computed in float64
            work = working_dtype(dtype, fraction=self.bits)
            period = 2.0 ** (self.bits - self.fraction)
            return FixedModesKernel(scale, self.low, self.high, self.half_up, period), work
        low, high = self.limits(dtype)
        if self.half_up:
            return FixedModesKernel(scale, low, high, half_up=True, period=None), work
        return FixedKernel(scale, low, high), work

    def limits(self, dtype: torch.dtype) -> tuple[float, float]:
        """The codes between which numbers of a type are rounded; wrapping needs every code."""
        if self.wraps:
            return self.low, self.high
        return -self._bound(-self.low, dtype), self._bound(self.high, dtype)

    def _bound(self, code: int, dtype: torch.dtype) -> float:
        scale = Fraction(2) ** self.fraction
        return float(Fraction(floor_to(code / scale, dtype)) * scale) if code else 0.0

    def codes(self, y: Tensor) -> Tensor:
        integers = y.to(torch.float64).mul(2.0**self.fraction)
        if not self.sign_magnitude:
            return integers.to(torch.int64)
        return with_sign(integers.abs().to(torch.int64), y, self.bits)

    def values(self, codes: Tensor) -> Tensor:
        if not self.sign_magnitude:
            return codes.to(torch.float64).mul_(2.0**-self.fraction)
        magnitudes, negative = without_sign(codes, self.bits)
        return with_signs(magnitudes.to(torch.float64).mul_(2.0**-self.fraction), negative)


def fixed_grid(width: int, frac_width: int, signed: bool, half_up: bool, wraps: bool) -> FixedGrid:
    """Two's complement, or no sign; no bits at all have one code, which is 0."""
    below = 2 ** (width - 1) if signed and width else 0
    high = 2**width - 1 - below
    return FixedGrid(width, frac_width, -below, high, half_up=half_up, wraps=wraps)


@dataclass(frozen=True)
class FloatKernel:
    """Rounding to nearest even with subnormals; beyond `top` is `top`."""

    smallest: float
    ulp: float
    top: float

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        out = torch.clamp(x, -self.top, self.top, out=out)
        step = binade(out).clamp_(min=self.smallest).mul_(self.ulp)
        return out.div_(step).round_().mul_(step)  # the carry into the exponent happens by itself


@dataclass(frozen=True)
class FloatGrid:
    """Floating-point numbers with subnormals, coded as sign, exponent, fraction.

    Attributes:
        fraction: bits after the leading one of a normal number.
        low: exponent of the smallest normal number.
        top: the largest number.
        hidden: the leading one is not stored.
        infinity: the magnitude code of infinity, if there is one; all above it are NaN.
        nan: the magnitude code that NaN is given, if there is one.
    """

    bits: int
    fraction: int
    low: int
    top: Fraction
    hidden: bool = True
    nan: int | None = None
    infinity: int | None = None
    signed_codes: bool = False

    @property
    def has_nan(self) -> bool:
        return self.nan is not None

    @property
    def stored(self) -> int:
        """Bits of the stored fraction, the leading one included where it is not hidden."""
        return self.fraction if self.hidden else self.fraction + 1

    @property
    def saturation(self) -> tuple[float, float]:
        last_step = Fraction(2) ** (exponent_below(self.top) - self.fraction)
        return both_sides(float(self.top + last_step / 2))

    def rounding(self, dtype: torch.dtype) -> Rounding:
        """Rounding that saturates at the last number which the tensor's type can hold."""
        last = Fraction(2) ** last_exponent(dtype) * (2 - Fraction(2) ** -self.fraction)
        top = floor_to(min(self.top, last), dtype)
        kernel = FloatKernel(2.0**self.low, 2.0**-self.fraction, top)
        return kernel, working_dtype(dtype, self.low, self.fraction)

    def codes(self, y: Tensor) -> Tensor:
        finite = y.isfinite()
        magnitudes = y.abs().where(finite, 0).to(torch.float64)
        power = binade(magnitudes).clamp_(min=2.0**self.low)
        fraction = magnitudes.div_(power).mul_(2.0**self.fraction).to(torch.int64)
        # A hidden leading one adds itself to the exponent, which is why normal codes start at 1.
        exponent = exponent_of(power).sub_(self.low)
        codes = exponent.bitwise_left_shift_(self.stored).add_(fraction)
        if self.infinity is not None:
            codes = codes.masked_fill(y.isinf(), self.infinity)
        codes = with_sign(codes, y, self.bits)
        return codes if self.nan is None else codes.masked_fill(y.isnan(), self.nan)

    def values(self, codes: Tensor) -> Tensor:
        codes, negative = without_sign(codes, self.bits)
        exponent = codes.bitwise_right_shift(self.stored)
        fraction = codes.bitwise_and((1 << self.stored) - 1)
        if self.hidden:
            fraction = torch.where(exponent > 0, fraction + (1 << self.fraction), fraction)
            exponent = (exponent - 1).clamp_(min=0)
        power = power_of_two((exponent + self.low).clamp_(max=1023))
        values = fraction.to(torch.float64).mul_(2.0**-self.fraction).mul_(power)
        if self.infinity is not None:
            values = values.masked_fill(codes == self.infinity, torch.inf)
            values = values.masked_fill(codes > self.infinity, torch.nan)
        values = with_signs(values, negative)
        return values if self.nan is None else values.masked_fill(codes == self.nan, torch.nan)


@dataclass(frozen=True)
class LogKernel:
    """Rounding to the nearest power of two by logarithm; up to half the smallest is zero."""

    smallest: float
    top: float

    def __call__(self, x: Tensor, out: Tensor | None) -> Tensor:
        kept = torch.hardshrink(x, self.smallest / 2)
        magnitudes = kept.abs().clamp_(self.smallest, self.top)
        # Times the root of two, the powers nearest by logarithm are those just below. The product
        # is rounded, but the two numbers next to the root fall on the right sides all the same.
        powers = binade(magnitudes.mul_(BELOW_ROOT[x.dtype]))
        # NaN has become infinite here and its sign is 0 or NaN, so that the product is NaN again.
        return torch.copysign(powers.mul_(kept.sign_()), x, out=out)


@dataclass(frozen=True)
class LogGrid:
    """Zero and the powers of two from ``2**low`` up, coded as sign and exponent; code 0 is zero."""

    bits: int
    low: int
    has_nan: bool = False
    signed_codes: bool = False

    @property
    def top(self) -> int:
        """The exponent of the largest number."""
        return self.low + (1 << (self.bits - 1)) - 2

    @property
    def saturation(self) -> tuple[float, float]:
        return both_sides(sqrt(2) * 2.0 ** min(self.top, 1023))

    def rounding(self, dtype: torch.dtype) -> Rounding:
        """Rounding that saturates at the last power which the tensor's type can hold."""
        work = working_dtype(dtype, self.low)
        top = min(self.top, last_exponent(dtype))
        return LogKernel(2.0**self.low, 2.0**top), work

    def codes(self, y: Tensor) -> Tensor:
        power = binade(y.abs().to(torch.float64))
        codes = exponent_of(power).sub_(self.low - 1).masked_fill_(power == 0, 0)
        return with_sign(codes, y, self.bits)

    def values(self, codes: Tensor) -> Tensor:
        codes, negative = without_sign(codes, self.bits)
        powers = power_of_two((codes + (self.low - 1)).clamp_(max=1023))
        return with_signs(powers.masked_fill_(codes == 0, 0), negative)


def both_sides(magnitude: float) -> tuple[float, float]:
    """The bounds outside which magnitudes are at least so large."""
    return nextafter(-magnitude, 0.0), magnitude


def with_sign(codes: Tensor, y: Tensor, bits: int) -> Tensor:
    """Magnitude codes with the sign of `y` as the top bit."""
    return codes + y.signbit().to(torch.int64).bitwise_left_shift_(bits - 1)


def without_sign(codes: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Magnitude codes, and where the top bit was set."""
    sign = 1 << (bits - 1)
    return codes.bitwise_and(sign - 1), codes.bitwise_and(sign) != 0


def with_signs(magnitudes: Tensor, negative: Tensor) -> Tensor:
    """The magnitudes, negated in places."""
    return torch.where(negative, -magnitudes, magnitudes)


class GridFormat(NumberFormat):
    """A number format that is made of one grid."""

    @cached_property
    @abstractmethod
    def grid(self) -> Grid:
        """The numbers of an element; in block formats, of a block whose scale is 1."""

    @property
    def element_bits(self) -> int:
        return (self.with_scale(None) if self.is_open else self).grid.bits

    @cached_property
    def _roundings(self) -> dict[torch.dtype, Rounding]:
        return {}  # by type of tensor, filled as they come

    def _rounding(self, dtype: torch.dtype) -> Rounding:
        if torch.compiler.is_compiling():
            prepare_roundings(self)
        rounding = self._roundings.get(dtype)
        if rounding is None:
            require_float(self, dtype)
            rounding = self._roundings[dtype] = self.grid.rounding(dtype)
        return rounding


@run_while_compiling
def prepare_roundings(fmt: GridFormat) -> None:
    """Work out how tensors of all types are rounded, which a compiler cannot record."""
    fmt._roundings.update({dtype: fmt.grid.rounding(dtype) for dtype in FLOATS - {*fmt._roundings}})
