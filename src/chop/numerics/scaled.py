"""Integers times any scale, as Brevitas, QONNX and ONNX have them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PlainSerializer, PlainValidator, model_validator
from torch import Tensor

from chop.numerics.arithmetic import (
    MAX_FRACTION,
    code_dtype,
    multiplier_and_shift,
    refuse_nan,
    rescale_codes,
    run_while_compiling,
)
from chop.numerics.base import FORMATS, Encoded, NumberFormat, require_float
from chop.numerics.elementwise import LAST_POINT, Integer
from chop.numerics.granular import require_broadcast
from chop.numerics.int_tensor import ARRAYS, DoubleTensor, FloatTensor, IntTensor, as_lists

SMALLEST_SCALE = 2.0**-126  # of normal numbers of float32
SMALLEST_GRID = SMALLEST_SCALE**2
FLOAT32_MAX = float(np.finfo(np.float32).max)
MOST_MULTIPLES = 2**37
"""Multiples beyond this are as good as infinite: times a multiplier, they fill 62 bits."""


def as_scale(value: Any) -> float | FloatTensor:
    """A scale, or one for each channel, as the float32 numbers that they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number, *ARRAYS)):
        raise ValueError("a number or a list of numbers expected")
    scales = FloatTensor(value)
    if not (np.isfinite(scales.array) & (scales.array >= SMALLEST_SCALE)).all():
        raise ValueError(f"scales are numbers of float32 from {SMALLEST_SCALE:g} up")
    return scales if scales.shape else float(scales.array)


def as_grid(value: Any) -> float | DoubleTensor | None:
    """The scale of what is rounded, or one for each channel; positive numbers of float64."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number, *ARRAYS)):
        raise ValueError("a number or a list of numbers expected")
    grid = DoubleTensor(value)
    if not (np.isfinite(grid.array) & (grid.array >= SMALLEST_GRID)).all():
        raise ValueError(f"grids are numbers from {SMALLEST_GRID:g} up")
    return grid if grid.shape else float(grid.array)


class OnDevices:
    """An array as a tensor on every device where it is asked for."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self._on: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """A tensor on a device, made once."""
        if torch.compiler.is_compiling() or device not in self._on:
            self.make(device)
        return self._on[device]

    @run_while_compiling
    def make(self, device: torch.device) -> None:
        """Make the tensor on a device."""
        if device not in self._on:
            self._on[device] = torch.tensor(self.array, device=device)


@FORMATS.register("integer_scaled")
class IntegerScaled(NumberFormat):
    """Integers times a scale, as Brevitas and QONNX have them: ``(code - zero_point) * scale``.

    A `scale` is a positive float32 number, for the whole tensor or, as nested lists or a tensor
    that broadcasts against what is rounded, for each channel. A code is the nearest to the exact
    quotient; `narrow` leaves out the lowest code of signed numbers, the highest of unsigned ones.
    Half-way cases go up or to the even code; ``half_even_steps`` makes the code less `zero_point`
    even, as QuantizeLinear of ONNX does.

    In a network that is whole in integers, what is rounded are multiples of a `grid`, the scale of
    the sums that are read. Where it is given, codes are computed from the multiples in integers, by
    a multiplier and a shift that stand for the ratio of both scales (`chop.numerics.arithmetic`).
    """

    label: ClassVar[str] = "IntegerScaled"

    width: int = Field(gt=0, le=32)
    scale: Annotated[
        float | FloatTensor,
        PlainValidator(as_scale, json_schema_input_type=Annotated[float, Field(gt=0)] | list[Any]),
        PlainSerializer(as_lists),
    ]
    grid: Annotated[
        float | DoubleTensor | None,
        PlainValidator(as_grid, json_schema_input_type=float | list[Any] | None),
        PlainSerializer(as_lists),
    ] = None
    zero_point: int = Field(default=0, ge=-(2**31), le=2**31)
    signed: bool = True
    narrow: bool = False
    rounding: Literal["half_even", "half_up", "half_even_steps"] = "half_even"

    @model_validator(mode="after")
    def _with_zero_among_its_codes(self) -> Self:
        low, high = self.code_range
        if low == high:
            raise ValueError("a narrow range needs a width of at least 2")
        if not low <= self.zero_point <= high:
            raise ValueError(f"zero_point must be a code, from {low} to {high}")
        if float(self._scales.array.max()) * 2.0**self.width > FLOAT32_MAX:
            raise ValueError("the largest number is beyond float32: scale is too large")
        return self

    @property
    def code_range(self) -> tuple[int, int]:
        """The smallest and the largest integer code."""
        below = 2 ** (self.width - 1) if self.signed else 0
        high = 2**self.width - 1 - below
        return (-below + self.narrow, high) if self.signed else (0, high - self.narrow)

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def saturation(self) -> tuple[Any, Any]:
        low, high = self.step_range
        return (low - 0.5) * self._scales.array, (high + 0.5) * self._scales.array

    @cached_property
    def _scales(self) -> OnDevices:
        """Scales in float64, in which quotients and products of float32 numbers are wide enough."""
        given = self.scale.array if isinstance(self.scale, FloatTensor) else self.scale
        return OnDevices(np.asarray(given, np.float64))

    @cached_property
    def _grids(self) -> OnDevices:
        given = self.grid.array if isinstance(self.grid, DoubleTensor) else self.grid
        return OnDevices(np.asarray(given, np.float64))

    @cached_property
    def _ratios(self) -> tuple[OnDevices, OnDevices]:
        multiplier, shift = multiplier_and_shift(self._grids.array / self._scales.array)
        return OnDevices(multiplier), OnDevices(shift)

    @property
    def scales(self) -> NDArray[np.float64]:
        """The scale, or that of each channel, as an array that broadcasts against the tensor."""
        return self._scales.array

    @property
    def grids(self) -> NDArray[np.float64] | None:
        """The scale of what is rounded, in such an array, if it is known."""
        return None if self.grid is None else self._grids.array

    def _scale_for(self, x: Tensor) -> Tensor:
        require_float(self, x.dtype)
        self.require_shape(x.shape)
        return self._scales.on(x.device)

    def require_shape(self, shape: Sequence[int]) -> None:
        require_broadcast("scales", self._scales.array.shape, tuple(shape))
        if self.grid is not None:
            require_broadcast("grids", self._grids.array.shape, tuple(shape))

    def as_integer(self) -> "Integer | None":
        """The same numbers as fixed point, which they are where scales are powers of two."""
        parts, exponents = np.frexp(self._scales.array)
        whole = self.zero_point == 0 and not self.narrow and self.grid is None
        plain = whole and bool((parts == 0.5).all())
        points = 1 - exponents
        # Of more bits, float32 lacks the last code, at which the two then saturate differently.
        if not plain or np.abs(points).max() > LAST_POINT or self.width > MAX_FRACTION + 1:
            return None
        return Integer(
            width=self.width,
            frac_width=IntTensor(points) if points.shape else int(points),
            signed=self.signed,
            rounding="half_up" if self.rounding == "half_up" else "half_even",
        )

    def round_to(self, x: Tensor) -> Tensor:
        steps = self._steps(x)
        values = steps.mul_(self._scale_for(x))
        most = torch.finfo(x.dtype).max
        values = values.clamp_(-most, most).to(x.dtype)
        return values if self.step_range[0] else values.abs_()

    def _steps(self, x: Tensor) -> Tensor:
        """The codes less the zero point, in float64."""
        scale = self._scale_for(x)
        if self.grid is not None:
            return self._steps_on_grid(x)
        quotient = x.detach().to(torch.float64) / scale
        steps = quotient.round()
        if self.rounding == "half_up":
            steps = torch.where(quotient - steps == 0.5, steps + 1, steps)
        elif self.zero_point % 2 and self.rounding == "half_even":  # the code is to be even
            other = 2 * quotient - steps
            steps = torch.where((quotient - steps).abs() == 0.5, other, steps)
        return steps.clamp_(*self.step_range)

    def _steps_on_grid(self, x: Tensor) -> Tensor:
        multiplier, shift = (each.on(x.device) for each in self._ratios)
        multiples = (x.detach().to(torch.float64) / self._grids.on(x.device)).round_()
        counts = multiples.clamp(-MOST_MULTIPLES, MOST_MULTIPLES).nan_to_num_(0.0).to(torch.int64)
        rounding = "half_up" if self.rounding == "half_up" else "half_even"
        steps = rescale_codes(counts, multiplier, shift, rounding).clamp_(*self.step_range)
        return torch.where(multiples.isnan(), multiples, steps.to(torch.float64))

    def steps(self, x: Tensor) -> Tensor:
        """The codes less the zero point, as int64."""
        steps = self._steps(x)
        refuse_nan(steps, type(self).__name__)
        return steps.to(torch.int64)

    @property
    def step_range(self) -> tuple[int, int]:
        """The smallest and the largest code, less the zero point."""
        low, high = self.code_range
        return low - self.zero_point, high - self.zero_point

    def encode(self, x: Tensor) -> Encoded:
        codes = self.steps(x).add_(self.zero_point)
        return Encoded(codes.to(code_dtype(self.width, self.signed)), None, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        like = torch.empty(encoded.codes.shape, dtype=encoded.dtype, device=encoded.codes.device)
        steps = encoded.codes.to(torch.float64).sub_(self.zero_point)
        most = torch.finfo(encoded.dtype).max
        return like.copy_(steps.mul_(self._scale_for(like)).clamp_(-most, most))
