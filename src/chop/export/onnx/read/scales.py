"""The codes and scale of a ``Quant`` node, and the number formats that hold the same numbers."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from chop.export.onnx.write.code import Array
from chop.lowering.dyadic import dyadic
from chop.lowering.ranges import TooWideError, bit_width
from chop.numerics import FORMATS, Integer, IntegerScaled, NumberFormat
from chop.numerics.int_tensor import FloatTensor, IntTensor

MOST_BITS, FURTHEST_POINT, SIGNIFICAND = 32, 126, 24


class NotBinaryError(Exception):
    """A scale that is not a power of two, or codes around a zero point: not fixed point."""


@dataclass(frozen=True)
class ScaledCodes:
    """Integers around a zero point, times a scale; the scale may differ between channels."""

    width: int
    scale: Array
    zero: int
    signed: bool
    narrow: bool
    rounding: Literal["half_even", "half_even_steps"] = "half_even"

    @property
    def type_name(self) -> str:
        """The type of NumPy that holds the codes, where it is as wide."""
        return f"{'' if self.signed else 'u'}int{self.width}"

    def same_as(self, other: "ScaledCodes") -> bool:
        """Return True if the same codes stand for the same numbers."""
        alike = (self.width, self.zero, self.signed) == (other.width, other.zero, other.signed)
        return alike and np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest code."""
        below = 2 ** (self.width - 1) if self.signed else 0
        high = 2**self.width - 1 - below
        return (-below + self.narrow, high) if self.signed else (0, high - self.narrow)

    @property
    def limits(self) -> tuple[float, float]:
        """Numbers that no result is beyond."""
        low, high = self.codes
        largest = float(self.scale.max())
        return (low - self.zero) * largest, (high - self.zero) * largest

    @property
    def turned(self) -> "ScaledCodes":
        """The same for a matrix whose rows and columns are exchanged."""
        return replace(self, scale=self.scale.T if self.scale.ndim == 2 else self.scale)

    def rounded(self, array: Array) -> Array:
        """The numbers of a constant, as the executor of qonnx computes them."""
        scale = self.scale.astype(np.float32)
        codes = np.round(np.clip(array.astype(np.float32) / scale + self.zero, *self.codes))
        found: Array = ((codes - self.zero) * scale).astype(np.float32)
        return found

    def format(self, binary: bool, constant: bool = False) -> NumberFormat:
        """The number format; fixed point if all of the file is to be that.

        Args:
            constant: the numbers are rounded already, so that they are within a narrow range.
        """
        one = self.scale.size == 1
        scale = self.scale.reshape(()) if one else without_batch(self.scale, constant)
        if not binary:
            given = float(scale) if one else FloatTensor(scale)
            return IntegerScaled(width=self.width, scale=given, zero_point=self.zero,
                                 signed=self.signed, narrow=self.narrow,
                                 rounding=self.rounding)  # fmt: skip
        parts, exponents = np.frexp(scale.astype(np.float64))
        points = 1 - exponents
        if (parts != 0.5).any() or self.zero or np.abs(points).max() > FURTHEST_POINT:
            raise NotBinaryError
        if self.narrow and not one and not constant:
            raise NotBinaryError  # limits beside the format are the same for all channels
        frac = int(points) if one else IntTensor(points)
        return Integer(width=self.width, frac_width=frac, signed=self.signed)


def without_batch(scale: Array, constant: bool) -> Array:
    """Scales of the rows of data, which have no dimension for the batch."""
    while not constant and scale.ndim > 1 and scale.shape[0] == 1:
        scale = scale[0]
    return scale


def exact_format(array: Array, binary: bool) -> NumberFormat:
    """A format that holds some float32 numbers as they are, with one scale if that can be."""
    if binary:
        try:
            codes, frac = dyadic(torch.from_numpy(array.astype(np.float64)))
            width = bit_width(int(codes.min(initial=0)), int(codes.max(initial=0)))
            if width <= MOST_BITS and abs(frac) <= FURTHEST_POINT:
                return Integer(width=width, frac_width=frac)
        except TooWideError:
            pass
    _, exponents = np.frexp(array.astype(np.float64))
    points = np.clip(SIGNIFICAND - exponents, -FURTHEST_POINT, FURTHEST_POINT)
    if binary:
        return Integer(width=SIGNIFICAND + 2, frac_width=IntTensor(points))
    scales = np.ldexp(np.ones(array.shape), -points)
    return IntegerScaled(width=SIGNIFICAND + 2, scale=FloatTensor(scales))


def is_granular(fmt: NumberFormat | None) -> bool:
    """Return True for a format that differs between channels or elements."""
    fields = (getattr(fmt, name, 0) for name in ("width", "frac_width", "signed", "scale"))
    return any(isinstance(each, IntTensor | FloatTensor) for each in fields)


def format_name(fmt: NumberFormat) -> str:
    """The registered name of a format."""
    return next(name for name, kind in FORMATS.items() if kind is type(fmt))
