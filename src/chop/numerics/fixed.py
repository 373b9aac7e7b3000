"""Fixed point: integers with a binary point."""

from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from chop.numerics.base import FORMATS
from chop.numerics.elementwise import ElementFormat
from chop.numerics.grids import FixedGrid


@FORMATS.register("integer", "fixed")
class Integer(ElementFormat):
    """Two's-complement fixed point: `width` bits, `frac_width` of them after the point.

    `rounding` says where half-way cases go, to the even code or up; `overflow` what becomes of
    numbers beyond the range: the nearest code, or the low bits of the code they would need.
    """

    label: ClassVar[str] = "Integer"

    width: int = Field(gt=0, le=53)
    frac_width: int = Field(ge=-126, le=126)
    signed: bool = True
    rounding: Literal["half_even", "half_up"] = "half_even"
    overflow: Literal["saturate", "wrap"] = "saturate"

    @model_validator(mode="before")
    @classmethod
    def _half_the_width(cls, fields: Any) -> Any:
        """No `frac_width` means half the width, as the labs write it."""
        if isinstance(fields, dict) and fields.get("frac_width") is None:
            width = fields.get("width")
            return fields | {"frac_width": width // 2 if type(width) is int else 0}
        return fields

    @property
    def code_range(self) -> tuple[int, int]:
        """The smallest and the largest integer code."""
        if self.signed:
            return -(2 ** (self.width - 1)), 2 ** (self.width - 1) - 1
        return 0, 2**self.width - 1

    @cached_property
    def grid(self) -> FixedGrid:
        return FixedGrid(
            self.width,
            self.frac_width,
            *self.code_range,
            half_up=self.rounding == "half_up",
            wraps=self.overflow == "wrap",
        )
