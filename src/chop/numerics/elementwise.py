"""Formats that round each element by itself: integers, fixed point and logarithms."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from chop.numerics.arithmetic import CHUNK, apply, code_dtype, refuse_nan, run
from chop.numerics.base import FORMATS, Encoded
from chop.numerics.granular import GranularGrid, granular_grid
from chop.numerics.grids import FixedGrid, GridFormat, LogGrid
from chop.numerics.int_tensor import ARRAYS, Granular, IntTensor, array_of


class ElementFormat(GridFormat):
    """A format that rounds each element to the same grid."""

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
        if isinstance(self.grid, GranularGrid):
            return out.copy_(self.grid.values(encoded.codes.to(torch.int64)))
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
    `width`, `frac_width` and `signed` may be given for each channel or element, as nested lists
    or tensors that broadcast against what is rounded; there, a width of 0 makes it zero.
    """

    label: ClassVar[str] = "Integer"

    width: Annotated[int | IntTensor, Granular(0, 53, Annotated[int, Field(gt=0, le=53)])]
    frac_width: Annotated[
        int | IntTensor, Granular(-126, 126, Annotated[int, Field(ge=-126, le=126)])
    ]
    signed: Annotated[bool | IntTensor, Granular(0, 1, bool)] = True
    rounding: Literal["half_even", "half_up"] = "half_even"
    overflow: Literal["saturate", "wrap"] = "saturate"

    @model_validator(mode="before")
    @classmethod
    def _half_the_width(cls, fields: Any) -> Any:
        """No `frac_width` means half the width, as the labs write it."""
        if isinstance(fields, dict) and fields.get("frac_width") is None:
            width = fields.get("width")
            if isinstance(width, ARRAYS):
                return fields | {"frac_width": IntTensor(array_of(width) // 2)}
            return fields | {"frac_width": width // 2 if type(width) is int else 0}
        return fields

    @model_validator(mode="after")
    def _with_shapes_that_agree(self) -> Self:
        if self.granular:
            shapes = {name: values.shape for name, values in self._arrays.items() if values.shape}
            try:
                np.broadcast_shapes(*shapes.values())
            except ValueError:
                given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                raise ValueError(f"shapes that do not broadcast: {given}") from None
        return self

    @property
    def granular(self) -> bool:
        """A width, binary point or sign is given for each channel or element."""
        fields = (self.width, self.frac_width, self.signed)
        return any(isinstance(each, IntTensor) for each in fields)

    @property
    def _arrays(self) -> dict[str, NDArray[np.int64]]:
        fields = {"width": self.width, "frac_width": self.frac_width, "signed": self.signed}
        return {
            name: np.asarray(each.array if isinstance(each, IntTensor) else each, np.int64)
            for name, each in fields.items()
        }

    @property
    def limits(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Binary point, smallest and largest code; arrays that broadcast against the tensor."""
        width, frac, signed = self._arrays.values()
        below = np.where((signed > 0) & (width > 0), 1 << np.maximum(width - 1, 0), 0)
        return frac, -below, (1 << width) - 1 - below

    @property
    def code_range(self) -> tuple[int, int]:
        """The smallest and the largest integer code."""
        _, low, high = self.limits
        return int(low.min()), int(high.max())

    @property
    def bits(self) -> float:
        return float(self.width.array.mean()) if isinstance(self.width, IntTensor) else self.width

    @cached_property
    def grid(self) -> FixedGrid | GranularGrid:
        width, frac, signed = self._arrays.values()
        if self.granular:
            return granular_grid(width, frac, signed, self._grid)
        return self._grid(int(width), int(frac), bool(signed))

    def _grid(self, width: int, frac_width: int, signed: bool) -> FixedGrid:
        below = 2 ** (width - 1) if signed and width else 0
        return FixedGrid(
            width,
            frac_width,
            -below,
            2**width - 1 - below,
            half_up=self.rounding == "half_up",
            wraps=self.overflow == "wrap",
        )


@FORMATS.register("log")
class Log(ElementFormat):
    """Zero and powers of two: a sign and `width` - 1 bits of exponent, of which code 0 is zero."""

    label: ClassVar[str] = "Log"

    width: int = Field(ge=2, le=11)
    exponent_bias: int | None = Field(default=None, ge=-1000, le=1000)

    @property
    def bias(self) -> int:
        """The exponent bias in use: half the exponent's range, unless given."""
        return 2 ** (self.width - 2) - 1 if self.exponent_bias is None else self.exponent_bias

    @cached_property
    def grid(self) -> LogGrid:
        return LogGrid(self.width, 1 - self.bias)
