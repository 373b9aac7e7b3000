"""Floating point of few bits: minifloats and the 8-bit types of the OCP."""

from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chop.numerics.arithmetic import all_finite
from chop.numerics.base import FORMATS
from chop.numerics.elementwise import ElementFormat, ExponentBias, exponent_bias_or
from chop.numerics.grids import FloatGrid

E4M3 = FloatGrid(bits=8, fraction=3, low=-6, top=Fraction(448), nan=0x7F)
E5M2 = FloatGrid(bits=8, fraction=2, low=-14, top=Fraction(57344), nan=0x7E, infinity=0x7C)


def check_exponent_fits(exponent_width: int, width: int, least_mantissa: int = 0) -> None:
    """Refuse an exponent that leaves too few bits of the number for the sign and the mantissa."""
    most = max(width - 1 - least_mantissa, 0)
    if exponent_width > most:
        raise ValueError(
            f"exponent_width {exponent_width} does not fit in a width of {width}:"
            f" with the sign there is room for {most}"
        )


class Minifloat(ElementFormat):
    """The fields that the two minifloats share."""

    least_mantissa: ClassVar[int]
    scale_field: ClassVar[str] = "exponent_bias"

    width: int = Field(gt=0, le=32)
    exponent_width: int = Field(gt=0, le=11)
    exponent_bias: ExponentBias = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_exponent_fits(self.exponent_width, self.width, self.least_mantissa)
        return self

    @property
    def mantissa(self) -> int:
        """Bits stored after the exponent."""
        return self.width - self.exponent_width - 1

    @property
    def bias(self) -> int:
        """The exponent bias in use: half the exponent's range, unless given."""
        return exponent_bias_or(self, 2 ** (self.exponent_width - 1) - 1)

    @property
    def last_power(self) -> Fraction:
        """The power of two that the largest exponent code stands for."""
        last_exponent: int = 2**self.exponent_width - 1 - self.bias
        return Fraction(2) ** last_exponent


@FORMATS.register("minifloat_ieee")
class MinifloatIEEE(Minifloat):
    """Floating point with a hidden one and subnormals; every code is a finite number."""

    label: ClassVar[str] = "MinifloatIEEE"
    least_mantissa: ClassVar[int] = 0

    @cached_property
    def grid(self) -> FloatGrid:
        top = self.last_power * (2 - Fraction(2) ** -self.mantissa)
        return FloatGrid(self.width, self.mantissa, 1 - self.bias, top)


@FORMATS.register("minifloat_denorm")
class MinifloatDenorm(Minifloat):
    """Floating point without a hidden one: a fraction below 1 times a power of two."""

    label: ClassVar[str] = "MinifloatDenorm"
    least_mantissa: ClassVar[int] = 1

    @cached_property
    def grid(self) -> FloatGrid:
        top = self.last_power * (1 - Fraction(2) ** -self.mantissa)
        return FloatGrid(self.width, self.mantissa - 1, -1 - self.bias, top, hidden=False)


@FORMATS.register("float8_e4m3")
class Float8E4M3(ElementFormat):
    """The OCP's 8-bit floating point with 4 exponent bits: NaN but no infinities, up to 448."""

    label: ClassVar[str] = "Float8E4M3"

    @cached_property
    def grid(self) -> FloatGrid:
        return E4M3


@FORMATS.register("float8_e5m2")
class Float8E5M2(ElementFormat):
    """The OCP's 8-bit floating point with 5 exponent bits: infinities and NaN, up to 57344."""

    label: ClassVar[str] = "Float8E5M2"

    @cached_property
    def grid(self) -> FloatGrid:
        return E5M2

    def round_to(self, x: Tensor) -> Tensor:
        """Infinities stay; what is finite but too large saturates."""
        rounded = super().round_to(x)
        if not torch.compiler.is_compiling() and all_finite(x):
            return rounded
        return torch.where(x.isinf(), x.detach(), rounded)

    def round_(self, x: Tensor) -> None:
        x.copy_(self.round_to(x))
