"""Formats that round each element by itself: integers, fixed point and logarithms."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from chop.numerics.arithmetic import (
    CHUNK,
    apply,
    code_dtype,
    refuse_nan,
    run_kernel,
)
from chop.numerics.base import FORMATS, Encoded, NumberFormat, OrAuto
from chop.numerics.granular import GranularGrid, code_limits
from chop.numerics.grids import FixedGrid, GridFormat, LogGrid, fixed_grid
from chop.numerics.int_tensor import ARRAYS, Granular, IntTensor

LAST_POINT = 126


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
            run_kernel(kernel, x, x)
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


FRACTION_BITS = Annotated[int | str, OrAuto(Annotated[int, Field(ge=-LAST_POINT, le=LAST_POINT)])]


@FORMATS.register("integer", "fixed")
class Integer(ElementFormat):
    """Two's-complement fixed point: `width` bits, `frac_width` of them after the point.

    `rounding` says where half-way cases go, to the even code or up; `overflow` what becomes of
    numbers beyond the range: the nearest code, or the low bits of the code they would need.
    `width`, `frac_width` and `signed` may be given for each channel or element, as nested lists
    or tensors that broadcast against what is rounded; there, a width of 0 makes it zero.
    """

    label: ClassVar[str] = "Integer"
    scale_field: ClassVar[str] = "frac_width"
    largest_scale: ClassVar[int] = LAST_POINT

    width: Annotated[int | IntTensor, Granular(0, 53, Annotated[int, Field(gt=0, le=53)])]
    frac_width: Annotated[
        int | IntTensor | Literal["auto"], Granular(-LAST_POINT, LAST_POINT, FRACTION_BITS)
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
                return fields | {"frac_width": IntTensor(IntTensor(width).array // 2)}
            return fields | {"frac_width": width // 2 if type(width) is int else 0}
        return fields

    @model_validator(mode="after")
    def _with_shapes_that_agree(self) -> Self:
        if self.granular and not self.is_open:
            named = zip(("width", "frac_width", "signed"), self.arrays, strict=True)
            shapes = {name: values.shape for name, values in named if values.shape}
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
    def arrays(self) -> list[NDArray[Any]]:
        """Width, binary point and sign as arrays that broadcast against the tensor."""
        self.require_closed()
        fields = (self.width, self.frac_width, self.signed)
        return [np.asarray(each.array if isinstance(each, IntTensor) else each) for each in fields]

    @property
    def limits(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Binary point, smallest and largest code, in arrays like these."""
        return code_limits(*self.arrays)

    @property
    def code_range(self) -> tuple[int, int]:
        """The smallest and the largest integer code."""
        _, low, high = self.limits
        return int(low.min()), int(high.max())

    @property
    def bits(self) -> float:
        return float(self.width.array.mean()) if isinstance(self.width, IntTensor) else self.width

    def require_shape(self, shape: Sequence[int]) -> None:
        grid = (self.with_scale(None) if self.is_open else self).grid
        if isinstance(grid, GranularGrid):
            grid.require_shape(shape)

    @property
    def mean_element_bits(self) -> float:
        return self.bits

    @property
    def widths(self) -> dict[int, int]:
        """The number of channels or elements that have each width; one of all."""
        given = self.width.array if isinstance(self.width, IntTensor) else self.width
        found, counts = np.unique(given, return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))

    def shown(self) -> dict[str, Any]:
        if not isinstance(self.width, IntTensor):
            return super().shown()
        zeros = self.widths.get(0, 0) / self.width.array.size
        return super().shown() | {"width": f"{self.width}" + f", {zeros:.0%} zero" * bool(zeros)}

    @cached_property
    def grid(self) -> FixedGrid | GranularGrid:
        modes = self.rounding == "half_up", self.overflow == "wrap"
        width, frac, signed = self.arrays
        if self.granular:
            return GranularGrid(width, frac, signed, *modes)
        return fixed_grid(int(width), int(frac), bool(signed), *modes)


ExponentBias = Annotated[int | str | None, OrAuto(Annotated[int | None, Field(ge=-1000, le=1000)])]


def exponent_bias_or(fmt: NumberFormat, default: int) -> int:
    """The exponent bias of a format, unless none is given."""
    fmt.require_closed()
    given: int | None = getattr(fmt, "exponent_bias", None)
    return default if given is None else given


@FORMATS.register("log")
class Log(ElementFormat):
    """Zero and powers of two: a sign and `width` - 1 exponent bits; exponent code 0 means zero."""

    label: ClassVar[str] = "Log"
    scale_field: ClassVar[str] = "exponent_bias"

    width: int = Field(ge=2, le=11)
    exponent_bias: ExponentBias = None

    @property
    def bias(self) -> int:
        """The exponent bias in use: half the exponent's range, unless given."""
        return exponent_bias_or(self, 2 ** (self.width - 2) - 1)

    @cached_property
    def grid(self) -> LogGrid:
        return LogGrid(self.width, 1 - self.bias)
