"""Formats that round each element by itself: integers, fixed point and logarithms."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chop.numerics.arithmetic import CHUNK, apply, code_dtype, refuse_nan, run
from chop.numerics.base import FORMATS, Encoded, NumberFormat, OrAuto
from chop.numerics.grids import FixedGrid, GridFormat, LogGrid


class ElementFormat(GridFormat):
    """A format that rounds each element to the same grid."""

    @property
    def saturation(self) -> tuple[Any, Any]:
        return self.grid.saturation

    def round_to(self, x: Tensor) -> Tensor:
        kernel, work = self._rounding(x.dtype)
        return apply(kernel, work, x)

    def round_(self, x: Tensor) -> None:
        kernel, work = self._rounding(x.dtype)
        if x.dtype == work:
            run(kernel, x, x)
        else:
            super().round_(x)

    def encode(self, x: Tensor) -> Encoded:
        y = self.round_to(x)
        if not self.grid.has_nan:
            refuse_nan(y, type(self).__name__)
        dtype = code_dtype(self.grid.bits, self.grid.signed_codes)
        return Encoded(self.grid.codes(y).to(dtype), None, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        out = torch.empty(encoded.codes.shape, dtype=encoded.dtype, device=encoded.codes.device)
        # In pieces: the values of codes are wide, and those of a whole tensor would be all at once.
        pieces = torch.split(encoded.codes.reshape(-1), CHUNK)
        for codes, result in zip(pieces, torch.split(out.view(-1), CHUNK), strict=True):
            result.copy_(self.grid.values(codes.to(torch.int64)))
        return out


@FORMATS.register("integer", "fixed")
class Integer(ElementFormat):
    """Two's-complement fixed point: `width` bits, `frac_width` of them after the point.

    `rounding` says where half-way cases go, to the even code or up; `overflow` what becomes of
    numbers beyond the range: the nearest code, or the low bits of the code they would need.
    """

    label: ClassVar[str] = "Integer"
    scale: ClassVar[str] = "frac_width"

    width: int = Field(gt=0, le=53)
    frac_width: Annotated[int | str, OrAuto(Annotated[int, Field(ge=-126, le=126)])]
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
        self.require_closed()
        return FixedGrid(
            self.width,
            int(self.frac_width),
            *self.code_range,
            half_up=self.rounding == "half_up",
            wraps=self.overflow == "wrap",
        )


ExponentBias = Annotated[int | str | None, OrAuto(Annotated[int | None, Field(ge=-1000, le=1000)])]


def bias_of(fmt: NumberFormat, default: int) -> int:
    """The exponent bias of a format, unless none is given."""
    fmt.require_closed()
    given: int | None = getattr(fmt, "exponent_bias", None)
    return default if given is None else given


@FORMATS.register("log")
class Log(ElementFormat):
    """Zero and powers of two: a sign and `width` - 1 bits of exponent, of which code 0 is zero."""

    label: ClassVar[str] = "Log"
    scale: ClassVar[str] = "exponent_bias"

    width: int = Field(ge=2, le=11)
    exponent_bias: ExponentBias = None

    @property
    def bias(self) -> int:
        """The exponent bias in use: half the exponent's range, unless given."""
        return bias_of(self, 2 ** (self.width - 2) - 1)

    @cached_property
    def grid(self) -> LogGrid:
        return LogGrid(self.width, 1 - self.bias)
